"""A session's turns that can still be watched. Pure."""

from __future__ import annotations

from collections import OrderedDict

from orchestrator.errors import TurnNotFoundError, TurnNotKeptError
from orchestrator.sessions.turn_record import TurnRecord

KEPT_TURNS = 32


class KeptTurns:
    """The records of a session's latest turns."""

    def __init__(self) -> None:
        self._records: OrderedDict[int, TurnRecord] = OrderedDict()
        self._last = 0

    def add(self, record: TurnRecord) -> None:
        """A turn begins."""
        self._last = record.turn
        self._records[record.turn] = record
        while len(self._records) > KEPT_TURNS:
            self._records.popitem(last=False)

    def get(self, turn: int) -> TurnRecord:
        """TurnNotFoundError or TurnNotKeptError."""
        record = self._records.get(turn)
        if record is not None:
            return record
        if 1 <= turn <= self._last:
            raise TurnNotKeptError(f"turn {turn} is not among the last {KEPT_TURNS}: its events are gone", turn=turn)
        raise TurnNotFoundError(f"there is no turn {turn}; the last one is {self._last}", turn=turn)
