"""Turns left in every way, and what stays of them; a soak."""
