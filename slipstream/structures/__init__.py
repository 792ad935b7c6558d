"""Trials of structures in child processes, before the service that asks compiles them."""
