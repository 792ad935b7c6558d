"""Checkpoints as transformers loads them, whatever computes with them then."""
