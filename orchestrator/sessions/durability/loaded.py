"""The sessions that this process has in memory."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from opentelemetry.trace import SpanContext

from orchestrator.errors import SessionLimitError, SessionNotFoundError, TurnNotFoundError, TurnNotKeptError
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.durability.stored_session import StoredSession
from orchestrator.sessions.turns.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turns.request_names import Requests
from orchestrator.sessions.turns.turn_record import TurnRecord

MAX_RECENT_TURNS = 32
MAX_RECENT_SIZE = 65_536
"""Tokens and log-probabilities in the records of a session's recent turns together: megabytes. The
latest record may hold more."""

_MAX_REQUESTS = 1024
"""Messages of a session whose request_id is remembered."""


class RecentTurns:
    """The records of a session's latest turns, which can still be watched."""

    def __init__(self) -> None:
        self._records: OrderedDict[int, TurnRecord] = OrderedDict()
        self._last = 0

    def add(self, record: TurnRecord) -> None:
        """Add the record of a turn that begins."""
        self._last = record.turn
        self._records[record.turn] = record
        self.trim()

    def trim(self) -> None:
        """Drop the oldest records beyond the limits, as when a turn has ended."""
        while len(self._records) > MAX_RECENT_TURNS or (len(self._records) > 1 and self._size > MAX_RECENT_SIZE):
            self._records.popitem(last=False)

    @property
    def _size(self) -> int:
        return sum(record.size for record in self._records.values())

    def get(self, turn: int) -> TurnRecord:
        """Return a turn's record. TurnNotFoundError; TurnNotKeptError if it was dropped."""
        record = self._records.get(turn)
        if record is not None:
            return record
        if 1 <= turn <= self._last:
            raise TurnNotKeptError(
                f"turn {turn} was too long ago: its events are gone, its text is in the session", turn=turn
            )
        raise TurnNotFoundError(f"there is no turn {turn}; the last one is {self._last}", turn=turn)


@dataclass(eq=False, slots=True)
class SessionRecord:
    """A session in memory: the conversation, what is stored of it, and what runs for it."""

    session: Session
    stored: StoredSession
    rounds: SessionRounds
    """The session's side of the rounds."""
    used: float = 0.0
    """When it was last active, by the monotonic clock."""
    running: TurnRecord | None = None
    """The record of the turn that runs."""
    beginning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a turn is written down and begun."""
    traced: SpanContext | None = None
    """The span of the last turn that has begun."""
    window: AcceptanceWindow = field(default_factory=AcceptanceWindow)
    turns: RecentTurns = field(default_factory=RecentTurns)
    requests: Requests[int] = field(default_factory=lambda: Requests(_MAX_REQUESTS))
    """Turns by the request_id of their messages."""

    @property
    def rests(self) -> bool:
        """True if memory holds nothing of the session that the store does not hold."""
        return self.running is None and not self.stored.unwritten and not self.beginning.locked()

    @property
    def summary(self) -> SessionSummary:
        """The session as it is now."""
        session, stored, running = self.session, self.stored, self.running
        return SessionSummary(
            session.id,
            round(stored.created * 1e6),
            round(stored.last_active * 1e6),
            session.turn_count,
            len(session.tokens),
            len(session.messages),
            None if running is None else running.turn,
            session.clock,
            stored.metadata,
        )


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """The facts about a session that lists show. Times are microseconds since the epoch."""

    id: str
    created: int
    last_active: int
    turn_count: int
    token_count: int
    message_count: int
    running_turn: int | None
    clock: datetime
    metadata: Mapping[str, str]


class LoadedSessions:
    """Sessions and generations by id, least recently active first."""

    def __init__(
        self,
        *,
        max_count: int,
        ttl_seconds: float,
        clock: Callable[[], float] = time.time,
        steady_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most ``max_count`` sessions, and as many generations, stay in memory.

        ``clock`` gives the times that are shown; ``steady_clock`` decides what expires.
        """
        self.ttl_seconds = ttl_seconds
        self._max_count = max_count
        self._clock = clock
        self._steady_clock = steady_clock
        self._records: dict[bool, OrderedDict[str, SessionRecord]] = {True: OrderedDict(), False: OrderedDict()}

    def __len__(self) -> int:
        return len(self._records[True])

    def now(self) -> datetime:
        """Return the time of day, UTC."""
        return datetime.fromtimestamp(self._clock(), UTC)

    def remove_ended_generations(self, count: int) -> list[SessionRecord]:
        """Remove and return the generations that ended longest ago, until ``count`` new ones fit.

        All choices of a request go together. SessionLimitError.
        """
        generations = self._records[False]
        excess = len(generations) + count - self._max_count
        groups: dict[str, list[SessionRecord]] = {}
        for record in generations.values() if excess > 0 else ():
            groups.setdefault(record.stored.request_id or record.session.id, []).append(record)
        ended: list[SessionRecord] = []
        for group in groups.values():
            if len(ended) < excess and all(record.running is None for record in group):
                ended += group
        if excess > len(ended):
            raise SessionLimitError(f"{len(generations)} generations are running, of at most {self._max_count}")
        for record in ended:
            del generations[record.session.id]
        return ended

    def add(self, record: SessionRecord) -> None:
        """Keep a session in memory from now on."""
        record.used = self._steady_clock()
        self._records[record.stored.listed][record.session.id] = record

    def evictable(self) -> list[SessionRecord]:
        """Return the longest-idle sessions beyond the limit that the store holds completely."""
        sessions = self._records[True]
        excess = len(sessions) - self._max_count
        resting = (record for record in sessions.values() if record.rests) if excess > 0 else ()
        return list(islice(resting, max(0, excess)))

    def find(self, session_id: str) -> SessionRecord | None:
        """Return a session or generation by id; None if it is not in memory."""
        return self._records[True].get(session_id) or self._records[False].get(session_id)

    def get(self, session_id: str) -> SessionRecord:
        """Return a session by id. SessionNotFoundError."""
        record = self.find(session_id)
        if record is None:
            raise session_not_found(session_id)
        return record

    def touch(self, record: SessionRecord) -> None:
        """Note that a session is active now."""
        record.stored.last_active, record.used = self._clock(), self._steady_clock()
        records = self._records[record.stored.listed]
        if record.session.id in records:
            records.move_to_end(record.session.id)

    def remove(self, record: SessionRecord) -> None:
        """Remove a session, unless it is out already or another record has its id."""
        if self.find(record.session.id) is record:
            del self._records[record.stored.listed][record.session.id]

    def all(self) -> list[SessionRecord]:
        """Return all sessions and generations."""
        return [*self._records[True].values(), *self._records[False].values()]

    def idle(self) -> list[SessionRecord]:
        """Return the sessions without a running turn that have been idle for too long."""
        limit = self._steady_clock() - self.ttl_seconds
        return [record for record in self.all() if record.used <= limit and record.running is None]


def session_not_found(session_id: str) -> SessionNotFoundError:
    """Return the error for a session that does not exist, or that belongs to another principal."""
    return SessionNotFoundError(f"there is no session {session_id!r}", session_id=session_id)
