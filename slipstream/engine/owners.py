"""Who holds the open sequences, which of them gives way to one more, and whose owner has gone. A
pure table with a clock that tests can turn."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class _Owner:
    connection_count: int = 0
    gone_since: float | None = None
    """When its last connection ended, or without one its first handle was opened; None while it has
    one."""
    held_count: int = 0
    idle: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Its handles of which no round runs, least recently used first."""


class Owners:
    """Handles by the owner that opened them. An owner without connections keeps its handles for a
    time of grace; one without a name is nobody, who cannot go."""

    def __init__(self, grace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._owners: dict[str, _Owner] = {}
        self._names: dict[str, str] = {}
        self._answered: set[str] = set()
        self._unused: OrderedDict[str, None] = OrderedDict()
        """Idle handles of which no round has ever been answered, oldest first: to lose one costs
        its owner nothing."""

    def __len__(self) -> int:
        return len(self._owners)

    def record_connection(self, name: str) -> None:
        """An owner has one more connection."""
        owner = self._owners.setdefault(name, _Owner())
        owner.connection_count += 1
        owner.gone_since = None

    def record_disconnection(self, name: str) -> None:
        """One of its connections has ended."""
        owner = self._owners[name]
        owner.connection_count -= 1
        if not owner.connection_count:
            owner.gone_since = self._clock()
        self._forget_if_empty(name)

    def add_handle(self, handle: str, name: str) -> None:
        """An owner has opened a handle, perhaps by what was still being read when its last
        connection ended."""
        owner = self._owners.setdefault(name, _Owner(gone_since=self._clock() if name else None))
        owner.held_count += 1
        owner.idle[handle] = self._unused[handle] = None
        self._names[handle] = name

    def remove_handle(self, handle: str) -> None:
        """A handle has come back; nothing happens if it was not open."""
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
        """A round of an open handle runs."""
        self._owners[self._names[handle]].idle.pop(handle, None)
        self._unused.pop(handle, None)

    def mark_idle(self, handle: str, *, answered: bool) -> None:
        """An open handle's round has ended, with an answer or without."""
        self._owners[self._names[handle]].idle[handle] = None
        if answered:
            self._answered.add(handle)
        elif handle not in self._answered:
            self._unused[handle] = None

    def handle_to_evict(self, name: str) -> str | None:
        """The idle handle that gives way to one more of an owner's.

        One that was never of use; else the least recently used one of whoever holds most, which is
        the owner itself unless another holds more: so nobody keeps another from its share, however
        many handles it opens. None if none is idle.
        """
        if self._unused:
            return next(iter(self._unused))
        own = self._owners.get(name, _Owner())
        givers = [
            owner
            for owner in self._owners.values()
            if owner.idle and (owner is own or owner.held_count > own.held_count)
        ]
        if not givers:
            return None
        return next(iter(max(givers, key=lambda owner: owner.held_count).idle))

    def orphaned_handles(self) -> dict[str, list[str]]:
        """The idle handles of each owner that has been gone for the time of grace."""
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
