"""The last turns with their rounds, for ``slipstream trace``: in memory, bounded, the oldest given
up first. Pure."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from orchestrator.rounds.note import RoundNote
from orchestrator.watching.sampled_rounds import SampledRounds

MAX_SAMPLED_ROUNDS = 64
"""Rounds of one turn: failed ones, the slowest, and those in which the least was accepted."""

_MOST_ROUNDS = 20_000
"""Of all turns together: about 20 MB."""


@dataclass(eq=False, slots=True)
class TurnNote:
    """A turn with those of its rounds that are kept. Times are of the monotonic clock, in seconds,
    but for ``started``."""

    session_id: str
    turn: int
    principal: str = ""
    """Whose it is."""
    started: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    began: float = field(default_factory=time.monotonic)
    trace_id: str = ""
    """Of its trace, in hexadecimal; empty if it is not traced."""
    rounds: SampledRounds = field(default_factory=lambda: SampledRounds(MAX_SAMPLED_ROUNDS))
    total: float | None = None
    """Seconds that it took; None while it runs."""

    @property
    def shown(self) -> list[RoundNote]:
        """The rounds to look at, in order of time."""
        return self.rounds.best(MAX_SAMPLED_ROUNDS)


class TurnRing:
    """Turns by session."""

    def __init__(self, most_rounds: int = _MOST_ROUNDS) -> None:
        self._most = most_rounds
        self._ended: OrderedDict[tuple[str, int], TurnNote] = OrderedDict()
        self._running: dict[tuple[str, int], TurnNote] = {}
        self._count = 0

    def begin(self, note: TurnNote) -> None:
        """A turn runs."""
        self._running[note.session_id, note.turn] = note

    def end(self, note: TurnNote) -> None:
        """It has ended. What is large in its rounds is given up."""
        del self._running[note.session_id, note.turn]
        note.rounds.settle()
        self._ended[note.session_id, note.turn] = note
        self._count += _size(note)
        while self._count > self._most and len(self._ended) > 1:
            _, oldest = self._ended.popitem(last=False)
            self._count -= _size(oldest)

    def of(self, session_id: str, most: int, principal: str | None = "") -> list[TurnNote]:
        """A session's last turns, at most so many, in order, if they are a principal's; None:
        whoever's they are."""
        known = [
            note
            for note in (*self._ended.values(), *self._running.values())
            if note.session_id == session_id and principal in (None, note.principal)
        ]
        return sorted(known, key=lambda note: note.turn)[-most:]


def _size(note: TurnNote) -> int:
    """A turn takes room too: one that was ended before its first round has nothing else."""
    return 1 + note.rounds.kept_count
