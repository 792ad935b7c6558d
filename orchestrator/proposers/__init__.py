"""Makers of hints: what a run's next tokens may be, while the target chooses them."""
