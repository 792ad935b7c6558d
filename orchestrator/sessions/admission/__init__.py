"""Admission: it lets turns begin, queues them, or refuses them."""
