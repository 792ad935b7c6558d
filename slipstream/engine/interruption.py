"""A word from whoever brings work to whoever computes: another one waits, so look up. Compiled code
reads it too."""

from __future__ import annotations

import numpy as np


class Interruption:
    """Said by any thread, and looked at between the steps of a run (`slipstream.engine.run`)."""

    def __init__(self) -> None:
        self._word = np.zeros(1, dtype=np.int64)
        self.place: int = self._word.ctypes.data
        """The address of an int64: not 0 while it is said."""

    def say(self) -> None:
        """Somebody waits."""
        self._word[0] = 1

    def unsay(self) -> None:
        """Whoever computes looks up, and then takes what waits: the other way round what comes
        between would not be told."""
        self._word[0] = 0

    @property
    def is_said(self) -> bool:
        """Whether somebody waits."""
        return bool(self._word[0])
