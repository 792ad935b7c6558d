"""Suites that others wrote, run against real services. Each has its own environment."""
