"""Hints: which to keep, what they are worth, and which of their tokens to verify. Pure: integers
and floats only, no clock, no I/O.

A hint never changes a text, because the target chooses every token. It only lets the target choose
several tokens in one step.
"""
