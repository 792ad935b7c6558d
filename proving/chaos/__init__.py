"""Faults of every kind, one after another, under many sessions."""
