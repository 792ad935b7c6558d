"""Writes down what becomes of sessions: each turn before its first token and when it ends, and on
the way how far it is.

Only what has an owner's row is written; a generation without a name, which nobody could find again,
is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.errors import SessionMovedError, StoreUnavailableError
from orchestrator.sessions.conversation.session import Session, common_prefix_length
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.loaded import SessionRecord
from orchestrator.sessions.durability.payloads import (
    TurnPayload,
    bytes_of,
    end_row,
    session_payload,
    turn_row,
)
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord
from orchestrator.store.rows import Counts, SessionRow, TurnRow
from orchestrator.store.store import Store

log = logging.getLogger(__name__)

_LARGE = 20_000
"""Tokens and log-probabilities of a turn: writing them as text takes milliseconds, which others are
not to wait for."""

_PAUSE_SECONDS = 1.0


class Persistence:
    """Everything that is written of the sessions of one owner."""

    def __init__(self, store: Store, owner_id: str, *, is_durable: bool) -> None:
        """``is_durable`` if others may read the store when this process has ended."""
        self.is_durable = is_durable
        self._store = store
        self._owner_id = owner_id

    def new_row(
        self,
        session: Session,
        name: RequestName,
        settings: GenerationSettings,
        created: float,
        *,
        system: str | None = None,
        principal: str,
        choice: int = 0,
        listed: bool = True,
    ) -> SessionRow:
        """For a session that is about to be created, at a time in seconds since the epoch."""
        moment, payload = round(created * 1e6), session_payload(session, system, settings)
        return SessionRow(
            id=session.id,
            owner=self._owner_id,
            epoch=1,
            listed=listed,
            created=moment,
            last_active=moment,
            request_id=name.id,
            fingerprint=name.fingerprint,
            choice=choice,
            target="",
            payload=payload,
            message_count=len(session.messages),
            principal=principal,
        )

    def fork_row(self, source: SessionRow, session_id: str, name: RequestName, created: float) -> SessionRow:
        """For a new session that begins like another, as `new_row`."""
        moment = round(created * 1e6)
        return replace(
            source,
            id=session_id,
            owner=self._owner_id,
            epoch=1,
            created=moment,
            last_active=moment,
            request_id=name.id,
            fingerprint=name.fingerprint,
            running_turn=None,
        )

    def with_counts(self, row: SessionRow, session: Session) -> SessionRow:
        """With what a row tells of its session."""
        return replace(
            row,
            turn_count=session.turn_count,
            token_count=len(session.tokens),
            message_count=len(session.messages),
        )

    async def begin_turn(
        self, record: SessionRecord, target: str, prompt: Sequence[int], payload: TurnPayload, name: RequestName
    ) -> None:
        """Write down a turn that is about to begin. SessionMovedError, StoreUnavailableError: then
        it must not."""
        if record.row is None:
            return
        await self.write_turn_ends(record)
        session = record.session
        row = replace(record.row, target=target)
        turn = _turn_row(session, prompt, payload, name)
        said = 0 if payload.content is None else 1
        counts = Counts(round(record.last_active * 1e6), turn.turn, len(prompt), len(session.messages) + said)
        await self._store.begin_turn(row, turn, counts)
        record.row, record.noted_count = row, 0

    async def create_generation(
        self, records: Sequence[SessionRecord], target: str, prompt: Sequence[int], payloads: Sequence[TurnPayload]
    ) -> list[SessionRow]:
        """Write down a generation's choices, each with its turn, which is about to begin; or find
        those that the request has got before."""
        turns = []
        for record, payload in zip(records, payloads, strict=True):
            if record.row is not None:
                record.row = replace(record.row, target=target, turn_count=1, token_count=len(prompt), running_turn=1)
                name = RequestName(record.row.request_id, record.row.fingerprint)
                turns.append(_turn_row(record.session, prompt, payload, name))
        rows = [record.row for record in records if record.row is not None]
        return await self._store.create(rows, turns=turns) if rows else []

    async def end_turn(self, record: SessionRecord, turn: TurnRecord, ended: TurnEnded, *, forgotten: bool) -> None:
        """Write down a turn that has ended; if that cannot be done now, later.
        SessionMovedError."""
        if record.row is None:
            return
        if turn.size < _LARGE:
            end = end_row(turn, ended, forgotten=forgotten)
        else:
            end = await asyncio.to_thread(end_row, turn, ended, forgotten=forgotten)
        record.unwritten[turn.turn] = end
        try:
            await self.write_turn_ends(record)
        except StoreUnavailableError as error:
            log.error("turn %d of session %s has ended: %s", turn.turn, record.session.id, error)

    async def write_turn_ends(self, record: SessionRecord) -> None:
        """Write down what has ended and is not written yet. SessionMovedError,
        StoreUnavailableError."""
        session = record.session
        for turn, end in list(record.unwritten.items()):
            assert record.row is not None
            counts = Counts(
                round(record.last_active * 1e6), session.turn_count, len(session.tokens), len(session.messages)
            )
            try:
                await self._store.end_turn(record.row, turn, end, counts)
            except SessionMovedError:  # whoever has the session, if anybody has, writes its own
                record.unwritten.clear()
                raise
            record.unwritten.pop(turn, None)

    async def write_progress(self, records: Sequence[SessionRecord]) -> list[SessionRecord]:
        """Write down the running turns' tokens that are not yet. Returns those whose session
        another has by now."""
        told: list[tuple[SessionRecord, int]] = []
        noted = []
        for record in records:
            turn, row = record.running, record.row
            if turn is not None and row is not None and turn.can_be_noted:
                count = turn.record.token_count
                if count > record.noted_count:
                    tokens = turn.record.tokens[record.noted_count : count]
                    noted.append((row, turn.record.turn, record.noted_count, bytes_of(tokens)))
                    told.append((record, count))
        if not noted:
            return []
        moved = set(await self._store.write_progress(noted))
        for record, count in told:
            record.noted_count = count
        return [record for record, _ in told if record.session.id in moved]

    async def write_ahead(self, record: SessionRecord, turn: TurnRecord, tokens: Sequence[int]) -> None:
        """Write down tokens that a turn is about to tell. SessionMovedError,
        StoreUnavailableError."""
        assert record.row is not None
        if await self._store.write_progress([(record.row, turn.turn, turn.token_count, bytes_of(tokens))]):
            raise SessionMovedError(f"session {record.session.id} is kept elsewhere", session_id=record.session.id)

    async def delete_session(self, record: SessionRecord, *, expired: bool = False) -> None:
        """Delete a session for good. SessionMovedError, StoreUnavailableError: then it is not."""
        if record.row is None:
            return
        record.is_deleted = True
        try:
            await self._store.delete(record.row, expired=expired)
        except BaseException:
            record.is_deleted = False
            raise


def _turn_row(session: Session, prompt: Sequence[int], payload: TurnPayload, name: RequestName) -> TurnRow:
    """The next turn of a session."""
    shared = common_prefix_length(session.tokens, prompt)
    return turn_row(session.turn_count + 1, (name.id, name.fingerprint), shared, prompt, payload)


class TurnPersistence:
    """The `TurnWriter` of one turn: writes its progress and its end."""

    def __init__(
        self,
        persistence: Persistence,
        record: SessionRecord,
        turn: TurnRecord,
        *,
        writes_ahead: bool,
        touch: Callable[[SessionRecord], None],
        on_ended: Callable[[TurnEnded], None],
        on_moved: Callable[[], None],
    ) -> None:
        """``touch`` notes that a session is active, and ``on_ended`` is called once the end is
        written, or cannot be; ``on_moved`` where the session is another's by now, or gone."""
        self.hands_over = persistence.is_durable and record.row is not None
        self.writes_ahead = writes_ahead and record.row is not None
        self._persistence = persistence
        self._record = record
        self._turn = turn
        self._touch = touch
        self._on_ended = on_ended
        self._on_moved = on_moved

    async def committing(self, tokens: Sequence[int]) -> None:
        """See `TurnWriter`. What cannot be written is not told: it waits."""
        while True:
            try:
                await self._persistence.write_ahead(self._record, self._turn, tokens)
                return
            except StoreUnavailableError as error:
                log.error("turn %d of session %s waits: %s", self._turn.turn, self._record.session.id, error)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def ended(self, ended: TurnEnded) -> bool:
        """See `TurnWriter`."""
        self._touch(self._record)
        forgotten = ended.error is not None and not ended.generated_token_count
        try:
            await self._persistence.end_turn(self._record, self._turn, ended, forgotten=forgotten)
        except SessionMovedError as error:
            self._on_moved()
            if not self._record.is_deleted:  # the owner runs the turn, and tells how it ends
                log.warning("turn %d: %s", self._turn.turn, error)
                self._record.running = None
                return False
        self._on_ended(ended)
        return True

    async def left(self, *, moved: bool) -> None:
        """See `TurnWriter`."""
        try:
            if not moved:
                await self._persistence.write_progress([self._record])
        except StoreUnavailableError as error:
            log.error("turn %d is left where it was last noted: %s", self._turn.turn, error)
        self._record.running = None
        if moved:
            self._on_moved()
