"""Where sessions live: in memory, until they are deleted or have been idle for too long."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from opentelemetry.trace import SpanContext

from orchestrator.errors import SessionExpiredError, SessionLimitError, SessionNotFoundError
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.acceptance_window import AcceptanceWindow
from orchestrator.sessions.kept_turns import KeptTurns
from orchestrator.sessions.requests import Requests
from orchestrator.sessions.session import Session
from orchestrator.sessions.settings import GenerationSettings
from orchestrator.sessions.text import Codec
from orchestrator.sessions.turn import Turn

_REMEMBERED_EXPIRED_IDS = 10_000


@dataclass(eq=False, slots=True)
class SessionRecord:
    """A session with what surrounds it: its side of the rounds, its turns, and its times in seconds since the epoch."""

    session: Session
    rounds: SessionRounds
    settings: GenerationSettings
    created: float
    last_active: float
    listed: bool
    """False for a generation's: nobody finds it who has not been told its id."""
    running: Turn | None = None
    traced: SpanContext | None = None
    """Of the last turn that has begun."""
    window: AcceptanceWindow = field(default_factory=AcceptanceWindow)
    turns: KeptTurns = field(default_factory=KeptTurns)
    requests: Requests[int] = field(default_factory=lambda: Requests(1024))
    """Turns by the request_id of their messages."""

    @property
    def cursor(self) -> tuple[int, str]:
        """Its place in the order of creation: microseconds since the epoch, then its id."""
        return int(self.created * 1e6), self.session.id


def random_id() -> str:
    """16 hexadecimal digits."""
    return secrets.token_hex(8)


class SessionStore:
    """Sessions by id, least recently active first."""

    def __init__(
        self,
        *,
        max_count: int,
        ttl_seconds: float,
        new_id: Callable[[], str] = random_id,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """At most ``max_count`` sessions are kept, and as many generations."""
        self.ttl_seconds = ttl_seconds
        self._max_count = max_count
        self._new_id = new_id
        self._clock = clock
        self._records: dict[bool, OrderedDict[str, SessionRecord]] = {True: OrderedDict(), False: OrderedDict()}
        self._expired: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records[True])

    def now(self) -> datetime:
        """The time of day, UTC."""
        return datetime.fromtimestamp(self._clock(), UTC)

    def make_room(self, count: int, *, listed: bool) -> list[SessionRecord]:
        """Take out the generations that have ended longest ago until ``count`` new ones fit; sessions are never taken out.

        SessionLimitError if there is no room.
        """
        kept = self._records[listed]
        excess = len(kept) + count - self._max_count
        ended = [] if listed else [record for record in kept.values() if record.running is None][: max(0, excess)]
        if excess > len(ended):
            what = "sessions are kept" if listed else "generations are running"
            raise SessionLimitError(f"{len(kept)} {what}, of at most {self._max_count}")
        for record in ended:
            del kept[record.session.id]
        return ended

    def add(
        self,
        codec: Codec,
        open_rounds: Callable[[str], SessionRounds],
        settings: GenerationSettings,
        *,
        system: str | None = None,
        clock: datetime | None = None,
        listed: bool = True,
    ) -> SessionRecord:
        """A new session, for which there is room. ``clock`` is what its chat template takes for now."""
        now = self._clock()
        session = Session(self._new_id(), codec, clock or self.now(), system)
        record = SessionRecord(session, open_rounds(session.id), settings, now, now, listed)
        self._records[listed][session.id] = record
        return record

    def find(self, session_id: str) -> SessionRecord | None:
        """A session or generation by id, if it is kept."""
        return self._records[True].get(session_id) or self._records[False].get(session_id)

    def get(self, session_id: str) -> SessionRecord:
        """A session by id. SessionExpiredError or SessionNotFoundError."""
        record = self.find(session_id)
        if record is not None:
            return record
        if session_id in self._expired:
            raise SessionExpiredError(
                f"session {session_id!r} expired after {self.ttl_seconds:g} s without a turn", session_id=session_id
            )
        raise SessionNotFoundError(f"there is no session {session_id!r}", session_id=session_id)

    def touch(self, record: SessionRecord) -> None:
        """Note that a session was active just now."""
        record.last_active = self._clock()
        kept = self._records[record.listed]
        if record.session.id in kept:
            kept.move_to_end(record.session.id)

    def remove(self, record: SessionRecord) -> None:
        """Take a session out; nothing happens if it is out already."""
        self._records[record.listed].pop(record.session.id, None)

    def all(self) -> list[SessionRecord]:
        """All sessions and generations."""
        return [*self._records[True].values(), *self._records[False].values()]

    def page(self, size: int, after: tuple[int, str] | None) -> tuple[list[SessionRecord], bool]:
        """At most ``size`` sessions, last created first, those created before ``after``; and whether there are more."""
        listed = sorted(self._records[True].values(), key=lambda record: record.cursor)
        end = len(listed) if after is None else bisect_left(listed, after, key=lambda record: record.cursor)
        start = max(0, end - size)
        return listed[start:end][::-1], start > 0

    def expire(self) -> list[SessionRecord]:
        """Take out and return the sessions that have been idle for too long; running ones stay."""
        limit = self._clock() - self.ttl_seconds
        idle = [record for record in self.all() if record.last_active <= limit and record.running is None]
        for record in idle:
            self.remove(record)
            self._expired[record.session.id] = None
        while len(self._expired) > _REMEMBERED_EXPIRED_IDS:
            self._expired.popitem(last=False)
        return idle
