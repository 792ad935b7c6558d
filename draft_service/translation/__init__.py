"""Translation between the target's tokens and those of a draft with another vocabulary."""
