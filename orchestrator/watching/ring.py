"""The last turns with their rounds, for ``slipstream trace``: in memory, bounded, oldest dropped
first. Pure."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from orchestrator.rounds.note import RoundNote
from orchestrator.watching.sampled_rounds import SampledRounds

MAX_SAMPLED_ROUNDS = 64
"""Most sampled rounds of one turn."""

_MOST_ROUNDS = 20_000
"""Most rounds of all turns together: about 20 MB."""


@dataclass(eq=False, slots=True)
class TurnNote:
    """A turn with its sampled rounds. Times are seconds of the monotonic clock, but for
    ``started``."""

    session_id: str
    turn: int
    principal: str = ""
    """The principal that owns the session."""
    started: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    began: float = field(default_factory=time.monotonic)
    trace_id: str = ""
    """Id of the trace in hexadecimal; empty if the turn is not traced."""
    rounds: SampledRounds = field(default_factory=lambda: SampledRounds(MAX_SAMPLED_ROUNDS))
    total: float | None = None
    """Duration in seconds; None while the turn runs."""

    @property
    def shown(self) -> list[RoundNote]:
        """The sampled rounds, in order of time."""
        return self.rounds.best(MAX_SAMPLED_ROUNDS)


class TurnRing:
    """The last turns, by session."""

    def __init__(self, most_rounds: int = _MOST_ROUNDS) -> None:
        self._most = most_rounds
        self._ended: OrderedDict[tuple[str, int], TurnNote] = OrderedDict()
        self._running: dict[tuple[str, int], TurnNote] = {}
        self._count = 0

    def begin(self, note: TurnNote) -> None:
        """Add a turn that begins."""
        self._running[note.session_id, note.turn] = note

    def end(self, note: TurnNote) -> None:
        """Note that a turn has ended, and cut its sample of rounds."""
        del self._running[note.session_id, note.turn]
        note.rounds.settle()
        self._ended[note.session_id, note.turn] = note
        self._count += _size(note)
        while self._count > self._most and len(self._ended) > 1:
            _, oldest = self._ended.popitem(last=False)
            self._count -= _size(oldest)

    def turns_of(self, session_id: str, most: int, principal: str | None = "") -> list[TurnNote]:
        """Return at most so many of a session's last turns, in order, if a principal owns them;
        None: any principal."""
        known = [
            note
            for note in (*self._ended.values(), *self._running.values())
            if note.session_id == session_id and principal in (None, note.principal)
        ]
        return sorted(known, key=lambda note: note.turn)[-most:]


def _size(note: TurnNote) -> int:
    """Return the size of a turn: one for itself, and one for each round."""
    return 1 + note.rounds.kept_count
