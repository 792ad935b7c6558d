"""Records of a target's choices, and the training of a draft on them."""
