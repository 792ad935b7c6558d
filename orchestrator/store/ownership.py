"""This process as an owner of sessions, and what it sees of the others.

No clock is compared with another machine's: an owner whose beat stands still for a lease, by the
clock of whoever looks, is taken out. If it was only slow it finds itself out and joins again, and
what has been taken from it is not its own any more.
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
    """``me`` among the owners of a store."""

    def __init__(
        self, store: Store, me: OwnerRow, lease_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.me = me
        self.lease_seconds = lease_seconds
        self._store = store
        self._clock = clock
        self._seconds = 0.0
        """The store's time at the last beat."""
        self._beaten = clock()
        self._sure_since = -math.inf
        """When the last beat was sent that the store took."""
        self.has_lost = False
        """True from a beat that the store did not take until `settled`: others may own what was
        this process's."""
        self._seen: dict[str, _Seen] = {}
        self._living: set[str] = set()
        self._looked = asyncio.Event()

    @property
    def period(self) -> float:
        """Seconds between two beats."""
        return self.lease_seconds / _BEATS_A_LEASE

    @property
    def is_sure(self) -> bool:
        """True while no other process can have taken a session of this one: its last beat is
        younger than a lease."""
        return not self.has_lost and self._clock() - self._sure_since < self.lease_seconds

    def settled(self) -> None:
        """Note that this process keeps no session any more that others have taken."""
        self.has_lost = False

    async def join(self) -> None:
        """Become an owner. Who was in this place before has ended."""
        await self._store.register(self.me)
        await self.beat()

    async def beat(self) -> bool:
        """Live on, and look at the others. False if they had taken this one for dead: what was its
        own may be others' now."""
        now = self._clock()
        away, self._beaten = now - self._beaten, now
        if away > self.lease_seconds / 2:
            self._seen.clear()  # who was away cannot say how long others were
        self._seconds += away
        try:
            self._seconds, alive = await self._store.beat(self.me.id, self._seconds)
            await self._look(now)
        except StoreUnavailableError:
            self._seen.clear()  # nor who could not look: they could not write either
            raise
        if alive:
            self._sure_since = now
        else:
            self.has_lost = True
            log.warning("the other processes took this one for dead")
            await self._store.register(self.me)
        return alive

    async def leave(self) -> None:
        """Give up what is owned: anybody may have it."""
        await self._store.remove_owner(self.me.id)

    async def look_again(self) -> None:
        """Wait until the others have been looked at anew."""
        await self._looked.wait()

    async def until_gone(self, owner_id: str) -> None:
        """Wait until another owner has ended, or has been taken out."""
        await self.look_again()
        while owner_id in self._living:
            await self.look_again()

    async def marked(self, session_id: str) -> OwnerRow | None:
        """The owner that gave out such an id for something that is not in the store; None if it is
        this one, or nobody."""
        mark = session_id[:_MARK_LENGTH]
        owners = [owner for owner in await self._store.owners() if owner.id != self.me.id]
        return next((owner for owner in owners if owner.id[:_MARK_LENGTH] == mark), None)

    @property
    def mark(self) -> str:
        """What ids begin with that this owner gives out for what is not in the store."""
        return self.me.id[:_MARK_LENGTH]

    async def _look(self, now: float) -> None:
        others = [owner for owner in await self._store.owners() if owner.id != self.me.id]
        for owner in others:
            seen = self._seen.get(owner.id)
            if seen is None or seen.beat != owner.beat:
                self._seen[owner.id] = _Seen(owner.beat, now)
            elif now - seen.since >= self.lease_seconds and await self._store.remove_owner(owner.id, owner.beat):
                log.warning(
                    "the process at %s is gone: it has not said anything for %g s", owner.address, now - seen.since
                )
                del self._seen[owner.id]
        self._seen = {owner.id: self._seen[owner.id] for owner in others if owner.id in self._seen}
        self._living = set(self._seen)
        self._looked.set()
        self._looked = asyncio.Event()
