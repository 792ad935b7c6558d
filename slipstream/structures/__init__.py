"""Trying structures in processes of their own, before the service that asks compiles them."""
