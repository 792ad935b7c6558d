"""Checks of everything a peer sends, where it arrives. A peer is trusted with its guesses, never
with their shape.

`faults` has the error and counts it. `bounds` has the few comparisons, `infos` the checks of what a
service reports about itself, `results` those of its answers to items, and `errors` those of an
item's error.
"""
