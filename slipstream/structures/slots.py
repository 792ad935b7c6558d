"""The slots that a caller holds while its structure is tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """The slot of one caller."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    """Structures that hold it or wait for it."""


class HeldSlots:
    """The slots that a caller holds while its structure is tried."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        self.held: list[asyncio.Lock | asyncio.Semaphore] = []
        self._on_left: Callable[[], None] | None = on_left

    def hand_over(self) -> HeldSlots:
        """Return the slots in a new object, whose owner releases them."""
        other = HeldSlots(lambda: None)
        other.held, self.held = self.held, []
        other._on_left, self._on_left = self._on_left, None
        return other

    def release(self) -> None:
        """Release the slots. Does nothing if they were handed over."""
        for each in reversed(self.held):
            each.release()
        self.held = []
        if self._on_left is not None:
            self._on_left()
            self._on_left = None
