"""Where sessions live: in memory, until they are deleted or have been idle for too long."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import SessionExpiredError, SessionLimitError, SessionNotFoundError
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.session import Session
from orchestrator.sessions.text import Codec

_REMEMBERED_EXPIRED_IDS = 10_000


@dataclass(eq=False, slots=True)
class SessionRecord:
    """A session with what surrounds it: its side of the rounds and its times in seconds since the epoch."""

    session: Session
    rounds: SessionRounds
    created: float
    last_active: float
    deleted: bool = False


def random_id() -> str:
    """16 hexadecimal digits."""
    return secrets.token_hex(8)


class SessionStore:
    """Sessions by id, least recently active first."""

    def __init__(
        self,
        open_rounds: Callable[[str], SessionRounds],
        *,
        max_count: int,
        ttl_seconds: float,
        new_id: Callable[[], str] = random_id,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ttl_seconds = ttl_seconds
        self._open_rounds = open_rounds
        self._max_count = max_count
        self._new_id = new_id
        self._clock = clock
        self._records: OrderedDict[str, SessionRecord] = OrderedDict()
        self._expired: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def create(self, codec: Codec, system: str | None = None) -> SessionRecord:
        """A new session. SessionLimitError if there are too many."""
        if len(self._records) >= self._max_count:
            raise SessionLimitError(f"{len(self._records)} sessions are kept, which is the limit")
        record = self.detached(codec, system)
        self._records[record.session.id] = record
        return record

    def detached(self, codec: Codec, system: str | None = None) -> SessionRecord:
        """A session nobody can find: for a single Generate."""
        now = self._clock()
        session = Session(self._new_id(), codec, system)
        return SessionRecord(session, self._open_rounds(session.id), created=now, last_active=now)

    def get(self, session_id: str) -> SessionRecord:
        """A session by id. SessionExpiredError or SessionNotFoundError."""
        record = self._records.get(session_id)
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
        if record.session.id in self._records:
            self._records.move_to_end(record.session.id)

    def delete(self, session_id: str) -> SessionRecord:
        """Take a session out. SessionExpiredError or SessionNotFoundError."""
        record = self.get(session_id)
        del self._records[session_id]
        return record

    def recent_first(self) -> list[SessionRecord]:
        """All sessions, most recently active first."""
        return list(reversed(self._records.values()))

    def expire(self) -> list[SessionRecord]:
        """Take out and return the sessions that have been idle for too long; running ones stay."""
        limit = self._clock() - self.ttl_seconds
        idle = [r for r in self._records.values() if r.last_active <= limit and r.session.turn is None]
        for record in idle:
            del self._records[record.session.id]
            self._expired[record.session.id] = None
        while len(self._expired) > _REMEMBERED_EXPIRED_IDS:
            self._expired.popitem(last=False)
        return idle
