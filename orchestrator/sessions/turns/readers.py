"""Readers of turn records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack

from orchestrator.sessions.turns.turn_record import TurnEvent, TurnRecord
from slipstream.errors import FieldViolation, InvalidFieldsError


class TurnReader:
    """Reads a record from a position on: the start, all deltas after that position, and the end."""

    def __init__(self, record: TurnRecord, after_token_count: int = 0) -> None:
        """InvalidFieldsError if the turn has ended with fewer tokens. While it runs, they may still
        come."""
        most = record.token_count if record.ended is not None else None
        if after_token_count < 0 or (most is not None and after_token_count > most):
            what = f"must be from 0 to {'what was received' if most is None else most}, but is {after_token_count}"
            raise InvalidFieldsError([FieldViolation("after_token_count", what)])
        self.record = record
        self.done = False
        self._position = after_token_count
        self._started = False

    def next(self) -> TurnEvent | None:
        """Return the next event; None if there is none now, or if the last one was read.

        Raises the reason why the record was broken off, once nothing is left to read.
        """
        if not self._started:
            self._started = True
            return self.record.started
        delta = self.record.after(self._position)
        if delta is not None:
            self._position += len(delta.token_ids)
            return delta
        if self.record.broken_off is not None:
            raise self.record.broken_off
        if self.record.ended is None or self.done:
            return None
        self.done = True
        return self.record.ended


async def read_all(readers: Sequence[TurnReader]) -> AsyncGenerator[tuple[int, TurnEvent]]:
    """Yield the events of several turns as they come, each with its reader's index, until all have
    ended."""
    grown = asyncio.Event()
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader.record.waking(grown))
        while True:
            grown.clear()
            for index, reader in enumerate(readers):
                while (event := reader.next()) is not None:
                    yield index, event
            if all(reader.done for reader in readers):
                return
            await grown.wait()
