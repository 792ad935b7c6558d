"""The sessions that this process keeps, as they live in its memory."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from opentelemetry.trace import SpanContext

from orchestrator.errors import SessionLimitError, SessionNotFoundError
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.turns.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turns.recent_turns import RecentTurns
from orchestrator.sessions.turns.request_names import Requests
from orchestrator.sessions.turns.turn import Turn
from orchestrator.store.rows import EndRow, SessionRow


@dataclass(eq=False, slots=True)
class SessionRecord:
    """A session with what surrounds it: its side of the rounds, its turns, and its times in seconds
    since the epoch."""

    session: Session
    rounds: SessionRounds
    settings: GenerationSettings
    created: float
    last_active: float
    listed: bool
    """False for a generation's: nobody finds it who has not been told its id."""
    row: SessionRow | None
    """What is written of it; None for a generation without a name, which nobody could find
    again."""
    principal: str = ""
    """Whose it is."""
    is_deleted: bool = False
    """Whether what is written of it is gone, or about to be."""
    used: float = 0.0
    """When it was last active, by a clock that nobody sets."""
    running: Turn | None = None
    beginning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a turn is written down and begun."""
    noted_count: int = 0
    """How many of the running turn's tokens are written down."""
    unwritten: dict[int, EndRow] = field(default_factory=dict)
    """Turns that have ended, and could not be written down yet."""
    traced: SpanContext | None = None
    """Of the last turn that has begun."""
    window: AcceptanceWindow = field(default_factory=AcceptanceWindow)
    turns: RecentTurns = field(default_factory=RecentTurns)
    requests: Requests[int] = field(default_factory=lambda: Requests(1024))
    """Turns by the request_id of their messages."""

    @property
    def request_id(self) -> str:
        """What created it; empty if that had no name."""
        return "" if self.row is None else self.row.request_id

    def is_owned_as(self, row: SessionRow) -> bool:
        """Return whether a session's row, as the store has it, names the ownership that this record
        was made under."""
        return self.row is not None and (row.owner, row.epoch) == (self.row.owner, self.row.epoch)

    @property
    def rests(self) -> bool:
        """Whether nothing of it is only in memory."""
        return self.running is None and not self.unwritten and not self.beginning.locked()

    @property
    def summary(self) -> SessionSummary:
        """As it is now."""
        session, running = self.session, self.running
        return SessionSummary(
            session.id,
            round(self.created * 1e6),
            round(self.last_active * 1e6),
            session.turn_count,
            len(session.tokens),
            len(session.messages),
            None if running is None else running.record.turn,
            session.clock,
        )


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """What is told of a session. Times are microseconds since the epoch."""

    id: str
    created: int
    last_active: int
    turn_count: int
    token_count: int
    message_count: int
    running_turn: int | None
    clock: datetime


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
        """``max_count`` sessions and as many generations are kept. The ``clock`` says what is
        shown; what expires goes by the ``steady_clock``."""
        self.ttl_seconds = ttl_seconds
        self._max_count = max_count
        self._clock = clock
        self._steady_clock = steady_clock
        self._records: dict[bool, OrderedDict[str, SessionRecord]] = {True: OrderedDict(), False: OrderedDict()}

    def __len__(self) -> int:
        return len(self._records[True])

    def now(self) -> datetime:
        """The time of day, UTC."""
        return datetime.fromtimestamp(self._clock(), UTC)

    def remove_ended_generations(self, count: int) -> list[SessionRecord]:
        """Take out the generations that have ended longest ago, all choices of a request together,
        until ``count`` new ones fit. SessionLimitError."""
        kept = self._records[False]
        excess = len(kept) + count - self._max_count
        groups: dict[str, list[SessionRecord]] = {}
        for record in kept.values() if excess > 0 else ():
            groups.setdefault(record.request_id or record.session.id, []).append(record)
        ended: list[SessionRecord] = []
        for group in groups.values():
            if len(ended) < excess and all(record.running is None for record in group):
                ended += group
        if excess > len(ended):
            raise SessionLimitError(f"{len(kept)} generations are running, of at most {self._max_count}")
        for record in ended:
            del kept[record.session.id]
        return ended

    def add(self, record: SessionRecord) -> None:
        """A session is kept from now on."""
        record.used = self._steady_clock()
        self._records[record.listed][record.session.id] = record

    def evictable(self) -> list[SessionRecord]:
        """The sessions too many that were active longest ago, if nothing is going on in them: they
        can be read again."""
        kept = self._records[True]
        excess = len(kept) - self._max_count
        resting = (record for record in kept.values() if record.rests) if excess > 0 else ()
        return list(islice(resting, max(0, excess)))

    def find(self, session_id: str) -> SessionRecord | None:
        """A session or generation by id, if it is kept here."""
        return self._records[True].get(session_id) or self._records[False].get(session_id)

    def get(self, session_id: str) -> SessionRecord:
        """A session by id. SessionNotFoundError."""
        record = self.find(session_id)
        if record is None:
            raise SessionNotFoundError(f"there is no session {session_id!r}", session_id=session_id)
        return record

    def touch(self, record: SessionRecord) -> None:
        """Note that a session was active just now."""
        record.last_active, record.used = self._clock(), self._steady_clock()
        kept = self._records[record.listed]
        if record.session.id in kept:
            kept.move_to_end(record.session.id)

    def remove(self, record: SessionRecord) -> None:
        """Take a session out; nothing happens if it is out already, or another record has its
        permit."""
        if self.find(record.session.id) is record:
            del self._records[record.listed][record.session.id]

    def all(self) -> list[SessionRecord]:
        """All sessions and generations."""
        return [*self._records[True].values(), *self._records[False].values()]

    def idle(self) -> list[SessionRecord]:
        """Those that have been idle for too long; running ones are not."""
        limit = self._steady_clock() - self.ttl_seconds
        return [record for record in self.all() if record.used <= limit and record.running is None]
