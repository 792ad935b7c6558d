"""The watch that rank 0 keeps over the other ranks: one that ends or freezes ends the group."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Protocol

from slipstream.hosting.ranks.channel import ANSWER, ASK, FAILED

_TICK_SECONDS = 0.5
"""Seconds between two questions to a rank."""

_EXIT_SECONDS = 5.0
"""Most seconds until a process that has closed its channel has a status."""


class RankProcess(Protocol):
    """The process of a rank, as `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """Return its exit status, negative if a signal ended it; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. subprocess.TimeoutExpired."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


@dataclass(slots=True)
class WatchedRank:
    """A rank that rank 0 started."""

    rank: int
    process: RankProcess
    connection: Connection
    is_asked: bool = False
    silent_ticks: int = 0
    reason: str = field(default="")
    """Reason of its end, in its own words."""

    def ask(self) -> None:
        """Ask it, unless it has not answered yet."""
        if self.is_asked:
            self.silent_ticks += 1
        else:
            self.is_asked = True
            self.connection.send_bytes(ASK)

    def hear(self) -> None:
        """Read a message. EOFError or OSError once it has ended."""
        message = self.connection.recv_bytes()
        if message == ANSWER:
            self.is_asked, self.silent_ticks = False, 0
        elif message.startswith(FAILED):
            self.reason = message.removeprefix(FAILED).decode()

    def last_words(self) -> str:
        """Return a line about its end, which has begun."""
        if self.reason:
            return f"rank {self.rank}: {self.reason}"
        try:
            status = self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"rank {self.rank} has left: the group ends"
        how = f"signal {-status}{_name(-status)}" if status < 0 else f"status {status}"
        return f"rank {self.rank} ended with {how}: the group ends"


class RankWatch:
    """A thread that asks all ranks, and tells of the first one that is lost."""

    def __init__(self, ranks: list[WatchedRank], patience: float, on_lost: Callable[[str], None]) -> None:
        """A rank that does not answer for ``patience`` seconds is frozen, once `enforce` was
        called: the interpreter of a rank that loads a model may be busy for longer. ``on_lost``
        gets one line, on this thread."""
        self._ranks = ranks
        self._most_silent = max(1, round(patience / _TICK_SECONDS))
        self._patience = patience
        self._on_lost = on_lost
        self._enforced = False
        self._wake, self._stop = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._thread.start()

    def enforce(self) -> None:
        """Count a rank that does not answer as lost, from now on."""
        self._enforced = True

    def stop(self) -> None:
        """Watch no more."""
        self._stop.send_bytes(b"")
        self._thread.join()

    def _run(self) -> None:
        channels = {rank.connection: rank for rank in self._ranks}
        next_tick = time.monotonic()
        while True:
            ready = wait([*channels, self._wake], max(0.0, next_tick - time.monotonic()))
            if self._wake in ready:
                return
            lost = self._hear([channels[each] for each in ready if isinstance(each, Connection)])
            if not lost and time.monotonic() >= next_tick:
                # One tick, however late it is: while this process stood still it heard no answer.
                next_tick = time.monotonic() + _TICK_SECONDS
                lost = self._ask()
            if lost:
                self._on_lost(lost)
                return

    def _hear(self, ready: list[WatchedRank]) -> str:
        for rank in ready:
            try:
                rank.hear()
            except (EOFError, OSError):
                return rank.last_words()
        return ""

    def _ask(self) -> str:
        for rank in self._ranks:
            try:
                rank.ask()
            except OSError:
                return rank.last_words()
            if not self._enforced:
                rank.silent_ticks = 0
            elif rank.silent_ticks >= self._most_silent:
                return f"rank {rank.rank} has not answered for {self._patience:g} s: the group ends"
        return ""


def _name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
