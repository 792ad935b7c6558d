"""The owners of sessions: this process, and the others as it sees them.

No process compares its clock with another machine's. A process removes an owner whose beat has not
grown for a lease, by its own clock. An owner that was only slow notices that it was removed, and
joins again; other processes may own its sessions by then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import StoreUnavailableError
from orchestrator.store.rows import OwnerRow
from orchestrator.store.store import Store

log = logging.getLogger(__name__)

_BEATS_A_LEASE = 4
_MARK_LENGTH = 4


@dataclass(slots=True)
class _Seen:
    beat: int
    since: float


class Ownership:
    """The membership of this process, ``me``, among the owners of a store."""

    def __init__(
        self, store: Store, me: OwnerRow, lease_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.me = me
        self.lease_seconds = lease_seconds
        self._store = store
        self._clock = clock
        self._seconds = 0.0
        """Time of the store at the last beat, in seconds."""
        self._beaten = clock()
        self._sure_since = -math.inf
        """When the last beat was sent that the store accepted."""
        self.has_lost = False
        """True from a beat that the store did not accept until `settled`: other processes may own
        the sessions of this one."""
        self._seen: dict[str, _Seen] = {}
        self._living: set[str] = set()
        self._looked = asyncio.Event()

    @property
    def period(self) -> float:
        """Seconds between two beats of this process."""
        return self.lease_seconds / _BEATS_A_LEASE

    @property
    def is_sure(self) -> bool:
        """True while no other process can have taken a session of this one: its last beat is
        younger than a lease."""
        return not self.has_lost and self._clock() - self._sure_since < self.lease_seconds

    def settled(self) -> None:
        """Note that this process has evicted all sessions that other processes own."""
        self.has_lost = False

    async def join(self) -> None:
        """Become an owner. A previous process in this place has ended."""
        await self._store.register_owner(self.me)
        await self.beat()

    async def beat(self) -> bool:
        """Renew the lease, and look at the other owners.

        Returns False if they had removed this one: they may own its sessions now.
        """
        now = self._clock()
        away, self._beaten = now - self._beaten, now
        if away > self.lease_seconds / 2:
            self._seen.clear()  # a process that was away cannot judge the others
        self._seconds += away
        try:
            self._seconds, alive = await self._store.beat(self.me.id, self._seconds)
            await self._look(now)
        except StoreUnavailableError:
            self._seen.clear()  # the others could not write either
            raise
        if alive:
            self._sure_since = now
        else:
            self.has_lost = True
            log.warning("the other processes took this one for dead: it did not renew its lease in time")
            await self._store.register_owner(self.me)
        return alive

    async def leave(self) -> None:
        """Give up all sessions: any process may take them over."""
        await self._store.remove_owner(self.me.id)

    async def look_again(self) -> None:
        """Wait until this process has looked at the other owners again."""
        await self._looked.wait()

    async def until_gone(self, owner_id: str) -> None:
        """Wait until an owner has ended, or was removed."""
        await self.look_again()
        while owner_id in self._living:
            await self.look_again()

    async def marked(self, session_id: str) -> OwnerRow | None:
        """Return the owner that made an id of a session which is not in the store; None if that is
        this process, or no living one."""
        mark = session_id[:_MARK_LENGTH]
        return next((owner for owner in await self.others() if owner.id[:_MARK_LENGTH] == mark), None)

    async def others(self) -> list[OwnerRow]:
        """Return the other owners of the store. Some may have ended just now."""
        return [owner for owner in await self._store.list_owners() if owner.id != self.me.id]

    @property
    def mark(self) -> str:
        """The first characters of ids that this owner makes for sessions which are not stored."""
        return self.me.id[:_MARK_LENGTH]

    async def _look(self, now: float) -> None:
        others = await self.others()
        for owner in others:
            seen = self._seen.get(owner.id)
            if seen is None or seen.beat != owner.beat:
                self._seen[owner.id] = _Seen(owner.beat, now)
            elif now - seen.since >= self.lease_seconds and await self._store.remove_owner(owner.id, owner.beat):
                log.warning(
                    "the process at %s is gone: it has not renewed its lease for %g s", owner.address, now - seen.since
                )
                del self._seen[owner.id]
        self._seen = {owner.id: self._seen[owner.id] for owner in others if owner.id in self._seen}
        self._living = set(self._seen)
        self._looked.set()
        self._looked = asyncio.Event()
