"""Rendering of a model's chat template, as transformers does it, in a child process."""
