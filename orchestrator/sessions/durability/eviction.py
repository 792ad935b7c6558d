"""Sessions that leave this process's memory: deleted, expired, another's by now, or resting while
there is no room."""

from __future__ import annotations

import logging
from collections.abc import Callable

from orchestrator.errors import SessionMovedError, StoreUnavailableError
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn import Ending

log = logging.getLogger(__name__)


class Eviction:
    """Takes sessions out, and gives back what was held for them."""

    def __init__(
        self, loaded: LoadedSessions, persistence: Persistence, tasks: TurnTasks, pair: Callable[[], Pair]
    ) -> None:
        """``pair`` is there where a session is."""
        self._loaded = loaded
        self._persistence = persistence
        self._tasks = tasks
        self._pair = pair

    def release_rounds(self, record: SessionRecord) -> None:
        """Give back its pages and its permits at the peers."""
        self._pair().rounds.release(record.rounds)

    def remove_idle_session(self, record: SessionRecord) -> None:
        """Keep one no more of which nothing runs."""
        self._loaded.remove(record)
        self.release_rounds(record)

    async def evict_session(self, record: SessionRecord, why: Ending) -> None:
        """Keep one no more, whatever runs in it."""
        self._loaded.remove(record)
        if record.running is not None:
            await self._tasks.end(record.running, why)
            record.running = None  # nobody waits for its end who would wait for ever
        self.release_rounds(record)

    def evict_longest_idle(self) -> None:
        """What others have made in the store gave way to, or has rested for longest, need not be in
        memory too."""
        for record in self._loaded.evictable():
            self.remove_idle_session(record)

    async def delete_session(self, record: SessionRecord, *, expired: bool = False) -> bool:
        """Have no trace left of a session of which nothing runs. False if that cannot be done
        now."""
        try:
            await self._persistence.delete_session(record, expired=expired)
        except StoreUnavailableError as error:
            log.error("session %s: %s", record.session.id, error)
            return False
        except SessionMovedError:  # its owner decides
            self.remove_idle_session(record)
            return False
        self.remove_idle_session(record)
        return True

    async def write_turn_ends(self, record: SessionRecord) -> None:
        """What could not be written before; if the session is another's by now, it is dropped."""
        try:
            await self._persistence.write_turn_ends(record)
        except SessionMovedError:
            await self.evict_session(record, Ending.MOVED)
        except StoreUnavailableError as error:
            log.error("session %s: %s", record.session.id, error)
