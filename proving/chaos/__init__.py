"""Everything goes wrong under many sessions, one thing after another."""
