"""Writes sessions and turns to the store, under the ownership of this process.

A turn is written before its first token and when it ends, and its tokens now and then in between. A
session without a row, as of a generation without a request_id, is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.errors import SessionMovedError
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.durability.stored_session import StoredSession
from orchestrator.sessions.durability.token_bytes import bytes_of
from orchestrator.sessions.turns.turn_record import TurnRecord
from orchestrator.store.rows import Counts, EndRow, SessionRow, TurnRow
from orchestrator.store.store import Store


class Persistence:
    """Writes the sessions of one owner."""

    def __init__(self, store: Store, *, is_durable: bool) -> None:
        """With ``is_durable`` other processes may read the store when this process has ended."""
        self.is_durable = is_durable
        self._store = store

    async def begin_turn(
        self, stored: StoredSession, session: Session, row: SessionRow, turn: TurnRow, counts: Counts
    ) -> None:
        """Write a turn that is about to begin; ``row`` becomes the session's.

        SessionMovedError, StoreUnavailableError: then the turn must not begin.
        """
        await self.write_turn_ends(stored, session)
        await self._store.begin_turn(row, turn, counts)
        stored.row, stored.noted_count = stored.row_for(row.target), 0

    async def write_metadata(self, stored: StoredSession, changed: SessionRow, metadata: Mapping[str, str]) -> None:
        """Write other metadata of a session, whose row ``changed`` has it. SessionMovedError,
        StoreUnavailableError: then it stays as it is."""
        assert stored.row is not None
        await self._store.write_payload(changed)
        stored.row, stored.metadata = replace(stored.row, payload=changed.payload), metadata

    async def create_generation(self, rows: Sequence[SessionRow], turns: Sequence[TurnRow]) -> list[SessionRow]:
        """Write a generation's sessions, each with its turn that is about to begin.

        Returns them, or those that the request created before.
        """
        return await self._store.create_sessions(rows, turns=turns) if rows else []

    async def write_turn_ends(self, stored: StoredSession, session: Session) -> None:
        """Write the ends of turns that are not written yet. SessionMovedError,
        StoreUnavailableError."""
        for turn, end in list(stored.unwritten.items()):
            assert stored.row is not None
            counts = Counts(
                round(stored.last_active * 1e6), session.turn_count, len(session.tokens), len(session.messages)
            )
            try:
                await self._store.end_turn(stored.row, turn, end, counts)
            except SessionMovedError:  # the owner, if there is one, writes its own
                stored.unwritten.clear()
                raise
            stored.unwritten.pop(turn, None)

    async def end_turn(self, stored: StoredSession, session: Session, turn: int, end: EndRow) -> None:
        """Write the end of a turn. StoreUnavailableError: then it stays to be written;
        SessionMovedError."""
        stored.unwritten[turn] = end
        await self.write_turn_ends(stored, session)

    async def write_progress(self, running: Sequence[tuple[StoredSession, TurnRecord]]) -> set[str]:
        """Write the new tokens of running turns. Returns the ids of sessions that other processes
        own by now."""
        written: list[tuple[StoredSession, int]] = []
        progress = []
        for stored, turn in running:
            count = turn.token_count
            if stored.row is not None and stored.notes_progress and count > stored.noted_count:
                tokens = turn.tokens[stored.noted_count : count]
                progress.append((stored.row, turn.turn, stored.noted_count, bytes_of(tokens)))
                written.append((stored, count))
        if not progress:
            return set()
        moved = set(await self._store.write_progress(progress))
        for stored, count in written:
            stored.noted_count = count
        return moved

    async def write_ahead(self, stored: StoredSession, turn: TurnRecord, tokens: Sequence[int]) -> None:
        """Write tokens that readers are about to get. SessionMovedError, StoreUnavailableError."""
        row = stored.row
        assert row is not None
        if await self._store.write_progress([(row, turn.turn, turn.token_count, bytes_of(tokens))]):
            raise SessionMovedError(f"another process owns session {row.id}", session_id=row.id)

    async def delete_session(self, stored: StoredSession, *, expired: bool = False) -> None:
        """Delete a session for good. SessionMovedError, StoreUnavailableError: then it stays."""
        if stored.row is None:
            return
        stored.is_deleted = True
        try:
            await self._store.delete_session(stored.row, expired=expired)
        except BaseException:
            stored.is_deleted = False
            raise
