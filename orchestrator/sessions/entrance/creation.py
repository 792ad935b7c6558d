"""Creates sessions: new ones, and forks of others. A repeated request gets the session that it has
created before."""

from __future__ import annotations

import secrets
from dataclasses import replace

from orchestrator.errors import SessionMovedError, TurnNotFoundError
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.messages import NO_OPTIONS, from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord, session_not_found
from orchestrator.sessions.durability.payloads import fork_row, new_session_row, row_with_counts
from orchestrator.sessions.durability.stored_session import StoredSession
from orchestrator.sessions.durability.takeover import rebuild_session
from orchestrator.sessions.entrance.requests import Fork, NewSession
from orchestrator.sessions.turns.pair import ServedPair
from orchestrator.sessions.turns.request_names import RequestName, check_request_id
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import SessionRow
from orchestrator.store.store import Store
from slipstream.errors import FieldViolation, InvalidFieldsError


class Creation:
    """Creates and forks sessions for `Sessions`, which describes the calls."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        eviction: Eviction,
        tasks: TurnTasks,
        served: ServedPair,
        *,
        max_count: int,
    ) -> None:
        """The store holds at most ``max_count`` sessions."""
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._eviction = eviction
        self._tasks = tasks
        self._served = served
        self._max_count = max_count

    async def create(self, new: NewSession) -> SessionRecord:
        """Create a session; see `Sessions.create`."""
        check_request_id(new.name.id)
        known = await self._known(new.caller, new.name)
        if known is not None:
            return known
        if new.system == "":
            raise InvalidFieldsError([FieldViolation("system", "must not be empty: leave it unset")])
        pair = self._served.pair
        pair.check_length(len(new.system or ""), "system")
        await pair.check(new.settings, new.caller)
        clock = new.clock or self._loaded.now()
        session = Session(secrets.token_hex(8), pair.codec, clock, new.system, new.options)
        if new.options != NO_OPTIONS:
            await self._check_options(session)
        self._tasks.refuse_while_draining()
        now, owner_id = self._loaded.now().timestamp(), self._ownership.me.id
        row = new_session_row(
            session,
            owner_id,
            new.name,
            new.settings,
            now,
            system=new.system,
            principal=new.caller.name,
            metadata=new.metadata,
        )
        stored = StoredSession(row, new.settings, now, now, principal=new.caller.name, metadata=new.metadata)
        record = SessionRecord(session, stored, pair.rounds.open(session.id))
        written = await self._tasks.run_to_completion(self._write(record, row, new.caller))
        return (await self._eviction.loaded_of_request(new.name, written))[0]

    async def fork(self, record: SessionRecord, asked: Fork, caller: Principal) -> SessionRecord:
        """Create a session that is what another was after a turn; see `Sessions.fork`."""
        source, after_turn, name = record.stored.row, asked.after_turn, asked.name
        self._served.pair.check_length(len(asked.system or ""), "system")
        if source is None or not record.stored.listed:
            raise session_not_found(record.session.id)
        await self._eviction.write_turn_ends(record)
        ended = [stored for stored in await self._store.list_turns(source.id) if stored.end is not None]
        last = max((stored.begun.turn for stored in ended), default=0)
        if after_turn is not None and not 0 <= after_turn <= last:
            raise TurnNotFoundError(f"no turn {after_turn} has ended; the last that has is {last}", turn=after_turn)
        last = last if after_turn is None else after_turn
        now = self._loaded.now().timestamp()
        row = fork_row(
            source,
            secrets.token_hex(8),
            self._ownership.me.id,
            name,
            now,
            after_turn=last,
            system=asked.system,
            options=asked.options,
        )
        nameless = [replace(stored, begun=replace(stored.begun, request_id="")) for stored in ended]
        copied = [stored for stored in nameless if stored.begun.turn <= last]
        forked = (await rebuild_session(row, copied, self._served.pair)).record
        if asked.options is not None:
            await self._check_options(forked.session)
        forked.stored.row = row = row_with_counts(row, forked.session)
        try:
            written = await self._tasks.run_to_completion(
                self._write(forked, row, caller, like=(source, last, len(copied)))
            )
        except SessionMovedError:
            await self._eviction.evict_moved_session(record)
            raise
        return (await self._eviction.loaded_of_request(name, written))[0]

    async def _check_options(self, session: Session) -> None:
        """Refuse options that the chat template does not read, now rather than with the next
        message. Raises what `Pair.encode` raises."""
        await self._served.pair.encode(next_prompt(session, from_user("Hello")), session.clock)

    async def known_fork(self, name: RequestName, caller: Principal) -> SessionRecord | None:
        """Return the fork that a request has created before; None if there is none."""
        check_request_id(name.id)
        return await self._known(caller, name)

    async def _write(
        self, record: SessionRecord, row: SessionRow, caller: Principal, like: tuple[SessionRow, int, int] | None = None
    ) -> list[SessionRow]:
        """Write a new session and load it; return its row, or the one that its request has created
        before."""
        written = await self._store.create_sessions(
            [row], most=self._max_count, most_of_principal=caller.limits.session_count, like=like
        )
        if written[0].id == row.id:
            self._loaded.add(record)
            self._eviction.evict_longest_idle()
        return written

    async def _known(self, caller: Principal, name: RequestName) -> SessionRecord | None:
        """Return the session that a request has created before. RequestIdReusedError;
        SessionMovedError."""
        rows = await self._store.sessions_of_request(caller.name, name.id, listed=True) if name.id else []
        records = await self._eviction.loaded_of_request(name, rows)
        return records[0] if records else None
