"""Signs of life of a long task, and its end when its user asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

ItemT = TypeVar("ItemT")
Tell = Callable[[str], None]


class StoppedError(Exception):
    """The user has stopped the distillation. Its steps are saved."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The user of a distillation, who is told how far it is and may stop it."""

    tell: Tell
    stopped: Callable[[], bool] = lambda: False
    every_seconds: float = 5.0

    def each(self, items: Iterable[ItemT], count: int, what: str) -> Iterator[ItemT]:
        """Yield ``count`` items, and tell now and then how many are done. StoppedError once
        ``stopped`` answers True."""
        told = time.monotonic()
        for done, item in enumerate(items):
            if self.stopped():
                raise StoppedError
            if time.monotonic() - told >= self.every_seconds:
                self.tell(f"{what} {done} of {count}")
                told = time.monotonic()
            yield item
