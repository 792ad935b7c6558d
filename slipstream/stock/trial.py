"""Measurements of a stock engine when the verifier starts: whether a row's bits depend on the batch
around it, and how long steps take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from statistics import median

import numpy as np

from slipstream.sampling.partial.known import Wanted
from slipstream.stock.protocol import Ask, StockEngine, StockFacts, StockRow

_LISTED = 20
"""Log-probabilities that are compared of each row."""

_ROW_COUNTS = (2, 8, 16)
"""Rows of the questions that are timed."""

_TRIALS = 3
_STREAMED = 8


async def differing_bits(engine: StockEngine, facts: StockFacts, tokens: Sequence[int]) -> str:
    """Return a sentence for people: what a trial has found about bits in a batch.

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
    largest = max(_difference(one, other) for one, other in pairs)
    found = f"differ by up to {largest:.1g}" if largest else "were equal in a trial at start"
    return (
        f"{facts.engine} does not promise that a row has equal bits in every batch: log-probabilities {found}. "
        "A text may change where two tokens come as near to each other."
    )


def _difference(one: StockRow, other: StockRow) -> float:
    both, at, other_at = np.intersect1d(one.known.token_ids, other.known.token_ids, return_indices=True)
    return float(np.abs(one.known.logprobs[at] - other.known.logprobs[other_at]).max()) if len(both) else np.inf


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
