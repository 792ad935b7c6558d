"""What a peer sends is checked here, once, where it arrives: a peer is trusted with its guesses,
never with their shape.

`faults` has the error and counts it, `bounds` the few comparisons, `infos` what a service says of
itself, `results` what it answers to an item, `errors` how it says that an item failed.
"""
