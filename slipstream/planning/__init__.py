"""A plan for a pair of models, from configurations alone: what fits, and how fast it may be."""
