"""The ranks that rank 0 starts on this machine, and ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Pipe
from types import TracebackType

from slipstream.hosting.ranks.channel import END
from slipstream.hosting.ranks.ending import end_now
from slipstream.hosting.ranks.place import CHANNEL, Place
from slipstream.hosting.ranks.watch import RankWatch, WatchedRank

_LEAVE_SECONDS = 5.0
"""Seconds that a rank has to leave when the group ends."""

_KILLED_SECONDS = 2.0
"""Most seconds until a rank that was killed has gone."""

_BACKLOG = 128

_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class LocalRanks:
    """Use as a context, on a thread that lives as long as the process: a rank ends with the thread
    that started it. After it no rank is left."""

    def __init__(self, name: str, place: Place, command: Sequence[str], patience: float) -> None:
        """``command`` starts a rank. ``name`` begins the line that is printed when a rank is
        lost."""
        self.place = place
        self._name = name
        self._command = command
        self._patience = patience
        self._ranks: list[WatchedRank] = []
        self._watch: RankWatch | None = None
        self._listener: socket.socket | None = None
        self._store: object = None
        self.end_others: Callable[[], None] = lambda: None
        """Ends the ranks that another program started."""

    def __enter__(self) -> LocalRanks:
        try:
            if self.place.starts_others:
                self._start()
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.place.starts_others:
            self.end_others()
        self._end(0.0 if kind else _LEAVE_SECONDS)

    def enforce(self) -> None:
        """Let a rank that freezes end the group, from now on."""
        if self._watch is not None:
            self._watch.enforce()

    def open_store(self) -> None:
        """Open the store in which the ranks meet, unless another program opens it. Rank 0 joins
        them afterwards."""
        if self._listener is not None and self._store is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of its C part

            host, port = self._listener.getsockname()
            descriptor = self._listener.detach()  # on loopback: the store's own socket would listen everywhere
            self._store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)

    def _start(self) -> None:
        # Bound here, so that no other process can take the port before the store is open.
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        port = self._listener.getsockname()[1]
        shared = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK, **os.environ}
        for rank in range(1, self.place.size):
            place = replace(self.place, rank=rank, local_rank=rank, starts_others=False)
            self._ranks.append(_start_rank(self._command, rank, {**shared, **place.variables(port)}))
        os.environ.update({**shared, **self.place.variables(port)})
        self._watch = RankWatch(self._ranks, self._patience, self._on_lost)

    def _on_lost(self, line: str) -> None:
        """End the other ranks, and this process."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.process.wait(_KILLED_SECONDS)
        end_now(1, f"{self._name}: {line}")

    def _end(self, patience: float) -> None:
        if self._watch is not None:
            self._watch.stop()
        for rank in self._ranks:
            with suppress(OSError):
                rank.connection.send_bytes(END)
        for rank in self._ranks:
            try:
                rank.process.wait(patience)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
            rank.connection.close()
        if self._listener is not None:
            self._listener.close()


def _start_rank(command: Sequence[str], rank: int, environment: Mapping[str, str]) -> WatchedRank:
    own, other = Pipe()
    with other:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            env={**environment, CHANNEL: str(other.fileno())},
        )
    return WatchedRank(rank, process, own)
