"""Hold many chats with an orchestrator at once, for benchmarks: the load generator of
``slipstream bench`` with settings of its own."""

from __future__ import annotations

import asyncio
import random

from slipstream.bench.prompts import Conversation
from slipstream.bench.report import Report
from slipstream.bench.running import run_load
from slipstream.bench.schedule import Schedule
from slipstream.bench.slipstream_server import SlipstreamServer
from slipstream.client import Settings

GOALS = {"ttft": 1000.0, "tpot": 100.0}
"""Limits in milliseconds of an answer that counts for goodput."""

_CONNECTIONS = 16
_PROMPT_WORDS = 12
_WORDS = "how where which what tell me about the a an of list table module function socket thread file".split()


def hold_chats(
    address: str, count: int, turns: int, settings: Settings, *, seed: int = 0, rate: float | None = None
) -> Report:
    """Hold ``count`` chats of so many turns at once, or begin them at a ``rate`` a second. The
    settings have the length of an answer."""
    assert settings.max_token_count is not None
    chats = [
        Conversation(tuple(_prompt(seed, index, turn) for turn in range(turns)), settings.max_token_count)
        for index in range(count)
    ]
    schedule = Schedule(rate, None if rate is not None else count, count, seed=seed)

    async def hold() -> Report:
        server = SlipstreamServer(address, settings, connections=min(count, _CONNECTIONS))
        try:
            return (await run_load(server, chats, schedule, GOALS))[0]
        finally:
            await server.close()

    return asyncio.run(hold())


def _prompt(seed: int, index: int, turn: int) -> str:
    rng = random.Random(f"{seed} {index} {turn}")
    return " ".join(rng.choices(_WORDS, k=_PROMPT_WORDS))
