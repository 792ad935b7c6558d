"""Stop flags that are set in the middle of a multi-step run, after a known number of steps."""

from __future__ import annotations

from slipstream.engine.stop_flag import StopFlag


class SetLater(StopFlag):
    """A flag that reads as set after ``looks`` reads in Python; compiled code never sees it set."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    @property
    def is_set(self) -> bool:
        self._looks -= 1
        return self._looks < 0
