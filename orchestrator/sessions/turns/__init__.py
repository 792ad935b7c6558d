"""Turns as tasks: their rounds, their records, their readers and their watchers."""
