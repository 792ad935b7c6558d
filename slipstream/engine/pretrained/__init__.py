"""Checkpoints as transformers loads them, for all backends that compute with them."""
