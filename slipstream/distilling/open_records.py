"""Records that still grow: the rows of sequences, until a pause or their number completes them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slipstream.distilling.records import MOST_LIKELIEST, NO_HINT, Floats, Ints, SequenceRecord
from slipstream.sampling.blocks import floats_of
from slipstream.sampling.kernel import Stored
from slipstream.sampling.likeliest import likeliest
from slipstream.sampling.softmax import log_softmax

MOST_ROWS = 1024
"""Rows of a record: half a megabyte."""
_PAUSE_SECONDS = 5.0
"""Seconds without a row after which a record is complete."""
_LONGEST_SECONDS = 300.0
"""Seconds after which a record is complete in any case."""


class SeenRows(NamedTuple):
    """Copies of a sequence's rows, as `slipstream.engine.row_observer.ObservedRows`."""

    handle: str
    tokens: array[int]
    """The tokens before the first choice."""
    hint: tuple[int, ...]
    choices: tuple[int, ...]
    logits: Stored

    @property
    def byte_count(self) -> int:
        """Bytes that they take while they wait."""
        return self.logits.nbytes + self.tokens.itemsize * len(self.tokens)


@dataclass(eq=False, slots=True)
class _Open:
    began: float
    touched: float
    tokens: array[int] = field(default_factory=lambda: array("q"))
    positions: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    hints: list[int] = field(default_factory=list)
    likeliest: list[tuple[Ints, Floats]] = field(default_factory=list)

    def continues(self, seen: SeenRows) -> bool:
        """Return whether rows come after all tokens of this record."""
        count = len(self.tokens)
        return len(seen.tokens) >= count and seen.tokens[:count] == self.tokens

    def add(self, seen: SeenRows) -> None:
        count = len(seen.choices)
        self.tokens = seen.tokens + array("q", seen.choices)
        self.positions += range(len(seen.tokens), len(self.tokens))
        self.chosen += seen.choices
        self.hints += [*seen.hint[:count], *[NO_HINT] * (count - len(seen.hint))]
        self.likeliest += map(likeliest_of, floats_of(seen.logits))

    def record(self) -> SequenceRecord:
        ids, logprobs = zip(*self.likeliest, strict=True)
        return SequenceRecord(
            np.array(self.tokens, dtype=np.int32),
            np.array(self.positions, dtype=np.int32),
            np.stack(ids),
            np.stack(logprobs),
            np.array(self.chosen, dtype=np.int32),
            np.array(self.hints, dtype=np.int32),
        )


class OpenRecords:
    """The records of all sequences that are being collected, by their handles."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}

    def add(self, seen: SeenRows) -> list[SequenceRecord]:
        """Add rows, and return the records that are complete now."""
        now, complete = self._clock(), []
        found = self._open.get(seen.handle)
        if found is not None and not found.continues(seen):  # the caller went back to other tokens
            complete.append(self._open.pop(seen.handle).record())
            found = None
        if found is None:
            found = self._open[seen.handle] = _Open(began=now, touched=now)
        found.add(seen)
        found.touched = now
        if len(found.positions) >= MOST_ROWS:
            complete.append(self._open.pop(seen.handle).record())
        return complete

    def take_ended(self) -> list[SequenceRecord]:
        """Return the records that are complete because time has passed."""
        now = self._clock()
        ended = [
            handle
            for handle, found in self._open.items()
            if now - found.touched >= _PAUSE_SECONDS or now - found.began >= _LONGEST_SECONDS
        ]
        return [self._open.pop(handle).record() for handle in ended]

    def take_all(self) -> list[SequenceRecord]:
        """Return all records as they are."""
        records = [found.record() for found in self._open.values()]
        self._open.clear()
        return records


def likeliest_of(row: Floats) -> tuple[Ints, Floats]:
    """Return a row's likeliest tokens with their log-probabilities at temperature 1, the largest
    first."""
    logprobs = log_softmax(row)
    ids = likeliest(logprobs, min(MOST_LIKELIEST, len(logprobs)))
    return ids.astype(np.int32), logprobs[ids]
