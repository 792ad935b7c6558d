"""A table of the open sequences by owner: which one to evict, and which owners have gone. Pure;
tests can set its clock."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class _Owner:
    connection_count: int = 0
    gone_since: float | None = None
    """When its last connection ended, or, without one, when it opened its first handle. None while
    it is connected."""
    held_count: int = 0
    idle: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Idle handles of the owner, least recently used first."""


class Owners:
    """Handles by the owner that opened them. An owner without connections keeps its handles for a
    grace period. An owner without a name never counts as gone."""

    def __init__(self, grace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._names: dict[str, str] = {}
        self._answered: set[str] = set()
        self._unused: OrderedDict[str, None] = OrderedDict()
        """Idle handles that never had an answered round, oldest first. Evicting one costs its owner
        nothing."""

    def __len__(self) -> int:
        return len(self._owners)

    def record_connection(self, name: str) -> None:
        """Record one more connection of an owner."""
        owner = self._owners.setdefault(name, _Owner())
        owner.connection_count += 1
        owner.gone_since = None

    def record_disconnection(self, name: str) -> None:
        """Record that one of the owner's connections has ended."""
        owner = self._owners[name]
        owner.connection_count -= 1
        if not owner.connection_count:
            owner.gone_since = self._clock()
        self._forget_if_empty(name)

    def add_handle(self, handle: str, name: str) -> None:
        """Record a handle that an owner has opened. Its last connection may have ended before the
        item was read."""
        owner = self._owners.setdefault(name, _Owner(gone_since=self._clock() if name else None))
        owner.held_count += 1
        owner.idle[handle] = self._unused[handle] = None
        self._names[handle] = name

    def remove_handle(self, handle: str) -> None:
        """Remove a handle. Does nothing if it was not open."""
        name = self._names.pop(handle, None)
        if name is None:
            return
        owner = self._owners[name]
        owner.held_count -= 1
        owner.idle.pop(handle, None)
        self._unused.pop(handle, None)
        self._answered.discard(handle)
        self._forget_if_empty(name)

    def mark_busy(self, handle: str) -> None:
        """Record that a round of an open handle runs."""
        self._owners[self._names[handle]].idle.pop(handle, None)
        self._unused.pop(handle, None)

    def mark_idle(self, handle: str, *, answered: bool) -> None:
        """Record that an open handle's round has ended, with an answer or without."""
        self._owners[self._names[handle]].idle[handle] = None
        if answered:
            self._answered.add(handle)
        elif handle not in self._answered:
            self._unused[handle] = None

    def handle_to_evict(self, name: str) -> str | None:
        """Return the idle handle to evict when an owner opens one more, or None if no handle is
        idle.

        It is a handle that was never used. Otherwise it is the least recently used handle of the
        owner that holds most: the owner itself, unless another one holds more. So no owner can take
        another's share, however many handles it opens.
        """
        if self._unused:
            return next(iter(self._unused))
        own = self._owners.get(name, _Owner())
        candidates = [
            owner
            for owner in self._owners.values()
            if owner.idle and (owner is own or owner.held_count > own.held_count)
        ]
        if not candidates:
            return None
        return next(iter(max(candidates, key=lambda owner: owner.held_count).idle))

    def orphaned_handles(self) -> dict[str, list[str]]:
        """Return the idle handles of each owner that has been gone for the grace period."""
        latest = self._clock() - self._grace_seconds
        return {
            name: [*owner.idle]
            for name, owner in self._owners.items()
            if owner.gone_since is not None and owner.gone_since <= latest and owner.idle
        }

    def _forget_if_empty(self, name: str) -> None:
        owner = self._owners[name]
        if not owner.connection_count and not owner.held_count:
            del self._owners[name]
