"""A process that ends together with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int, number: signal.Signals = signal.SIGTERM) -> None:
    """On Linux, have this process get a signal when its parent has ended, even by SIGKILL.
    SystemExit if the parent has already ended. On other systems, do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent_pid:
            sys.exit("the parent is gone already")
