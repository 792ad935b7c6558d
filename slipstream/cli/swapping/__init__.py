"""What ``slipstream swap`` does: a trial of a new draft under traffic, and its verdict."""
