"""The process of a rank other than 0: it computes its part of each step until rank 0 ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from slipstream.errors import SlipstreamError
from slipstream.hosting.ranks.channel import channel_to_rank_0
from slipstream.hosting.ranks.ending import end_now
from slipstream.hosting.ranks.place import CHANNEL
from slipstream.parent import end_with

log = logging.getLogger(__name__)


def leave_signals_to_rank_0() -> None:
    """Ignore SIGTERM and SIGINT from now on. They are for rank 0, which drains first. systemd sends
    them to all processes, and they must not end this rank in the middle of a step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def follow_rank_0(name: str, work: Callable[[], None]) -> None:
    """Do the work of a rank. Returns when the work has ended; exits with one line if it fails."""
    if CHANNEL in os.environ:
        leave_signals_to_rank_0()
        end_with(os.getppid(), signal.SIGKILL)
    else:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait until all ranks have come

    def leave(status: int, line: str) -> None:
        end_now(status, line and f"{name}: {line}")

    channel = channel_to_rank_0(os.environ, leave)
    try:
        work()
    except Exception as error:
        reason = str(error)
        if not isinstance(error, SlipstreamError):
            log.critical("this rank failed", exc_info=True)
            reason = repr(error)
        if channel is not None:
            with suppress(OSError):
                channel.report_failure(reason)
        sys.exit(f"{name}: {reason}")
