"""Several answers to one prompt, side by side."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from opentelemetry.context import Context

from orchestrator.processes.pair import ServedPair
from orchestrator.sessions.settings import ResolvedTurn
from orchestrator.sessions.turns import TurnDelta, TurnEvent
from slipstream.sampling.rule import MAX_SEED

MAX_CHOICES = 64

_Item = tuple[int, TurnEvent | None]


def choice_seed(seed: int, index: int) -> int:
    """Answer 0 has the request's own seed, so that it is the answer to a request for one; the others' are hashes."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


def _choice(resolved: ResolvedTurn, index: int) -> ResolvedTurn:
    """The turn of one answer. The prompt's log-probabilities come with the first and are the same for all."""
    rule = replace(resolved.rule, seed=choice_seed(resolved.rule.seed, index))
    logprobs = resolved.logprobs
    if index and logprobs is not None:
        logprobs = replace(logprobs, prompt=False)
    return replace(resolved, rule=rule, logprobs=logprobs)


async def run_choices(
    pair: ServedPair, prompt: Sequence[int], resolved: ResolvedTurn, count: int, parent: Context
) -> AsyncGenerator[tuple[int, TurnEvent]]:
    """The events of ``count`` answers, interleaved, each with its answer's index. The first error ends them all."""
    events: asyncio.Queue[_Item] = asyncio.Queue()
    prefilled = asyncio.Event()

    async def answer(index: int) -> None:
        if index:
            await prefilled.wait()  # the others find the prompt's pages in the prefix cache
        record = pair.store.detached(pair.codec)
        turn = pair.run_turn(
            record, prompt, _choice(resolved, index), content=None, cancelled=asyncio.Event(), parent=parent
        )
        try:
            async with aclosing(turn) as turn_events:
                async for event in turn_events:
                    if isinstance(event, TurnDelta):
                        prefilled.set()
                    events.put_nowait((index, event))
        finally:
            pair.release(record)
            prefilled.set()
            events.put_nowait((index, None))

    tasks = [asyncio.create_task(answer(index)) for index in range(count)]
    try:
        for _ in range(count):
            while (item := await events.get())[1] is not None:
                yield item[0], item[1]
            await tasks[item[0]]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
