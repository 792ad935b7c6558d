"""A session's rounds: propose, verify, learn. Knows the peers and speculation; knows nothing of
turns, text and clients."""
