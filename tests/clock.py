"""A clock that tests move."""

from __future__ import annotations


class Clock:
    """Seconds; call it for the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
