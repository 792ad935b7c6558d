"""A flag that asks a multi-step run to stop after the current step. Compiled code reads it too."""

from __future__ import annotations

import numpy as np


class StopFlag:
    """A flag that any thread may set, and that a multi-step run reads after each step."""

    def __init__(self) -> None:
        self._flag = np.zeros(1, dtype=np.int64)
        self.address: int = self._flag.ctypes.data
        """Address of an int64 that is not 0 while the flag is set."""

    def set(self) -> None:
        """Ask the run to stop after its current step."""
        self._flag[0] = 1

    def clear(self) -> None:
        """Clear the flag. Clear it before the new work is collected: work that arrives in between
        then sets it again."""
        self._flag[0] = 0

    @property
    def is_set(self) -> bool:
        """True if the run is asked to stop."""
        return bool(self._flag[0])
