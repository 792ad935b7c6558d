"""Heads: small modules that make hints from the target's hidden states, and the files that hold
them. No torch."""
