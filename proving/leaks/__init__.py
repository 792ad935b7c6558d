"""Turns that are abandoned in every way, the resources that they leave, and a soak."""
