"""The channel between rank 0 and a rank that it started: a pair of sockets.

Rank 0 asks whether the rank is alive, and a thread of the rank answers. A stopped process answers
nothing. The channel of a process that has ended is closed by the kernel.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

from slipstream.hosting.ranks.place import CHANNEL

ASK, ANSWER, END, FAILED = b"?", b"!", b"end", b"failed: "


class RankEnd:
    """The end of a channel that a rank other than 0 holds."""

    def __init__(self, connection: Connection, leave: Callable[[int, str], None]) -> None:
        """``leave`` gets an exit status, and a line or nothing, when the group has ended. It is
        called on a thread of this channel."""
        self._connection = connection
        self._leave = leave
        self._lock = threading.Lock()
        threading.Thread(target=self._answer, name="rank-channel", daemon=True).start()

    def report_failure(self, reason: str) -> None:
        """Tell rank 0 why this rank ends."""
        self._send(FAILED + reason.encode(errors="replace"))

    def _answer(self) -> None:
        try:
            while (message := self._connection.recv_bytes()) != END:
                if message == ASK:
                    self._send(ANSWER)
            self._leave(0, "")
        except (EOFError, OSError):
            self._leave(1, "rank 0 has ended: the group ends")

    def _send(self, message: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(message)


def channel_to_rank_0(environment: Mapping[str, str], leave: Callable[[int, str], None]) -> RankEnd | None:
    """Return this rank's end of its channel; None if another program started the ranks."""
    if CHANNEL not in environment:
        return None
    descriptor = int(environment[CHANNEL])
    os.set_inheritable(descriptor, False)  # or a child of this process would keep the channel open
    return RankEnd(Connection(descriptor), leave)
