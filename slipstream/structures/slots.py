"""What a caller holds while its structure is tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """One caller's."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    """Structures that have it or wait for it."""


class HeldSlots:
    """What a caller holds while its structure is tried."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        self.held: list[asyncio.Lock | asyncio.Semaphore] = []
        self._on_left: Callable[[], None] | None = on_left

    def hand_over(self) -> HeldSlots:
        """All of it, for another to leave."""
        other = HeldSlots(lambda: None)
        other.held, self.held = self.held, []
        other._on_left, self._on_left = self._on_left, None
        return other

    def release(self) -> None:
        """Give it back; nothing happens if it was handed on."""
        for each in reversed(self.held):
            each.release()
        self.held = []
        if self._on_left is not None:
            self._on_left()
            self._on_left = None
