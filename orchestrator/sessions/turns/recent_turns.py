"""A session's turns that can still be watched. Pure."""

from __future__ import annotations

from collections import OrderedDict

from orchestrator.errors import TurnNotFoundError, TurnNotKeptError
from orchestrator.sessions.turns.turn_record import TurnRecord

MAX_RECENT_TURNS = 32
MAX_RECENT_SIZE = 65_536
"""What the kept turns may hold together, in tokens and log-probabilities: megabytes. The latest is
kept whatever it holds."""


class RecentTurns:
    """The records of a session's latest turns."""

    def __init__(self) -> None:
        self._records: OrderedDict[int, TurnRecord] = OrderedDict()
        self._last = 0

    def add(self, record: TurnRecord) -> None:
        """A turn begins."""
        self._last = record.turn
        self._records[record.turn] = record
        self.trim()

    def trim(self) -> None:
        """A turn has ended: it will grow no more."""
        while len(self._records) > MAX_RECENT_TURNS or (len(self._records) > 1 and self._size > MAX_RECENT_SIZE):
            self._records.popitem(last=False)

    @property
    def _size(self) -> int:
        return sum(record.size for record in self._records.values())

    def get(self, turn: int) -> TurnRecord:
        """TurnNotFoundError or TurnNotKeptError."""
        record = self._records.get(turn)
        if record is not None:
            return record
        if 1 <= turn <= self._last:
            raise TurnNotKeptError(
                f"turn {turn} was too long ago: its events are gone, its text is in the session", turn=turn
            )
        raise TurnNotFoundError(f"there is no turn {turn}; the last one is {self._last}", turn=turn)
