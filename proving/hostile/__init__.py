"""Hostile messages to every method of every service, beside sessions that must not be affected."""
