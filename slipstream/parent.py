"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int) -> None:
    """Linux: get SIGTERM when the parent is gone, even by SIGKILL; SystemExit if it is gone
    already. Elsewhere: nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            sys.exit("the parent is gone already")
