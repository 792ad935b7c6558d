"""The recent acceptance rate of a session's draft. Pure."""

from __future__ import annotations

from collections import deque

_WINDOW_TOKENS = 200
"""Draft tokens in the window."""


class AcceptanceWindow:
    """The session's last draft tokens, and how many of them the target accepted."""

    __slots__ = ("_accepted", "_drafted", "_rounds")

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, int]] = deque()
        self._drafted = 0
        self._accepted = 0

    def add(self, drafted: int, accepted: int) -> float | None:
        """Add a round; return the acceptance rate over the window, or None before it is full."""
        self._rounds.append((drafted, accepted))
        self._drafted += drafted
        self._accepted += accepted
        while self._drafted - self._rounds[0][0] >= _WINDOW_TOKENS:
            drafted, accepted = self._rounds.popleft()
            self._drafted -= drafted
            self._accepted -= accepted
        return self._accepted / self._drafted if self._drafted >= _WINDOW_TOKENS else None
