"""Interruptions that come in the midst of a run, after a known number of steps."""

from __future__ import annotations

from slipstream.engine.interruption import Interruption


class SaidLater(Interruption):
    """Said once it has been looked at so many times in vain; by who reads its word in compiled
    code, never."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    @property
    def is_said(self) -> bool:
        self._looks -= 1
        return self._looks < 0
