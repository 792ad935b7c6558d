"""When requests start. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Arrivals = Literal["poisson", "constant"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The number of conversations, and the moments at which they start.

    With a ``rate`` so many start in a second, however long the answers take; the ``concurrency``,
    if there is one, then limits how many run. Without a rate so many run at a time.
    """

    rate: float | None = None
    concurrency: int | None = 8
    count: int | None = 100
    """Number of conversations; None: as many as start within the duration."""
    duration: float | None = None
    """Seconds in which conversations start. Those that have started run to their end."""
    arrivals: Arrivals = "poisson"
    seed: int = 0

    def offsets(self) -> Iterator[float]:
        """Yield the seconds from the load's start to each conversation's, for a load with a
        rate."""
        assert self.rate is not None
        rng, at, number = random.Random(self.seed), 0.0, 0
        while (self.count is None or number < self.count) and (self.duration is None or at < self.duration):
            yield at
            number += 1
            at = at + rng.expovariate(self.rate) if self.arrivals == "poisson" else number / self.rate
