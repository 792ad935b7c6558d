"""Measurements of a stock engine when the verifier starts: whether a row's bits depend on the batch
around it, and how long steps take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median

import numpy as np

from slipstream.sampling.kernel import Floats32
from slipstream.sampling.partial.known import Wanted
from slipstream.stock.protocol import Ask, StockEngine, StockFacts, StockRow

_LISTED = 20
"""Log-probabilities that are compared of each row."""

_ROW_COUNTS = (2, 8, 16)
"""Rows of the questions that are timed."""

_TRIALS = 3
_COMPARED = 3
"""Hint tokens of the question whose rows are compared later."""
_LEAST_TOLERANCE, _NOISES = 0.2, 4.0
"""In log-probabilities, and in noises of the trial. A mean has far less noise than the largest
difference, and other weights move the less likely tokens by more."""
_STREAMED = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """Rows of a text at the start of a verifier, and how far they depend on the batch."""

    ask: Ask
    rows: tuple[StockRow, ...]
    noise: float
    """Largest difference between log-probabilities of a row alone and in a batch."""

    def sentence(self, engine: str) -> str:
        """Return what was found about bits in a batch, for people."""
        found = f"differ by up to {self.noise:.1g}" if self.noise else "were equal in a trial at start"
        return (
            f"{engine} does not promise that a row has equal bits in every batch: log-probabilities {found}. "
            "A text may change where two tokens come as near to each other."
        )

    @property
    def tolerance(self) -> float:
        """Return the most that the same weights may be away from these rows."""
        return max(_LEAST_TOLERANCE, _NOISES * self.noise)

    async def distance(self, engine: StockEngine) -> float:
        """Return how far a server's rows are from these now: the mean difference between
        log-probabilities, and the least of several looks if it is large."""
        least = np.inf
        for _ in range(_TRIALS):
            rows = await engine.score(self.ask)
            least = min(least, float(np.mean([_apart(*pair) for pair in zip(self.rows, rows, strict=True)])))
            if least <= self.tolerance:
                break
        return least


async def try_bits(engine: StockEngine, facts: StockFacts, tokens: Sequence[int]) -> Trial:
    """Return a trial of the server's bits.

    Each prefix of ``tokens`` is asked for alone, then all at once, then as the rows of one
    question.
    """
    wanted = Wanted(min(_LISTED, facts.most_likeliest))
    ends = range(len(tokens) // 2, len(tokens) + 1, max(1, len(tokens) // 8))
    alone = [(await engine.score(Ask(tokens[:end], (), wanted)))[0] for end in ends]
    batch = [rows[0] for rows in await asyncio.gather(*[engine.score(Ask(tokens[:end], (), wanted)) for end in ends])]
    first, last = ends[0], ends[-1]
    rows = await engine.score(Ask(tokens[:first], tokens[first:last], wanted))
    in_rows = [rows[end - first] for end in ends]
    pairs = [*zip(alone, batch, strict=True), *zip(alone, in_rows, strict=True)]
    split = max(first, last - _COMPARED)
    compared = Ask(tokens[:split], tokens[split:last], wanted)
    return Trial(compared, tuple(rows[split - first :]), max(_difference(one, other) for one, other in pairs))


def _difference(one: StockRow, other: StockRow) -> float:
    differences = _differences(one, other)
    return float(differences.max()) if len(differences) else np.inf


def _apart(one: StockRow, other: StockRow) -> float:
    """Return the mean difference of two rows; infinity if they list other tokens."""
    differences = _differences(one, other)
    return float(differences.mean()) if 2 * len(differences) >= len(one.known.token_ids) else np.inf


def _differences(one: StockRow, other: StockRow) -> Floats32:
    """Return the differences of tokens that both rows list."""
    _, at, other_at = np.intersect1d(one.known.token_ids, other.known.token_ids, return_indices=True)
    differences: Floats32 = np.abs(one.known.logprobs[at] - other.known.logprobs[other_at])
    return differences


async def measure_steps(engine: StockEngine, tokens: Sequence[int]) -> list[tuple[int, float]]:
    """Return (rows, seconds) of steps after ``tokens``: a token of a stream, and questions of
    several rows."""
    profile = [(1, await _seconds_of_streamed(engine, tokens))]
    for count in _ROW_COUNTS:
        if count > len(tokens) // 2:
            break
        split = len(tokens) - count + 1
        times: list[float] = []
        for _ in range(_TRIALS):
            started = time.monotonic()
            await engine.score(Ask(tokens[:split], tokens[split:], Wanted(2)))
            times.append(time.monotonic() - started)
        profile.append((count, median(times)))
    return profile


async def _seconds_of_streamed(engine: StockEngine, tokens: Sequence[int]) -> float:
    times: list[float] = []
    last = time.monotonic()
    async with aclosing(engine.continue_greedily(tokens, _STREAMED, 2)) as stream:
        async for _ in stream:
            now = time.monotonic()
            times.append(now - last)
            last = now
    return median(times[1:] or times or [1.0])
