"""A load to run on one server, or on two in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.bench.client_load import ClientLoad
from slipstream.bench.lengths import Lengths
from slipstream.bench.metrics_page import summed
from slipstream.bench.prompts import Conversation, made_conversations, read_conversations
from slipstream.bench.records import Record
from slipstream.bench.report import Report, report_of
from slipstream.bench.running import run_load, warm_up
from slipstream.bench.schedule import Schedule
from slipstream.bench.server import BenchServer

_UNBOUNDED_COUNT = 500
"""Conversations made for a load whose number only its duration limits, if it has no rate. They are
held again once all were held."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A load: requests, their number, and the goals of an answer."""

    schedule: Schedule = field(default_factory=Schedule)
    prompt: Lengths = field(default_factory=lambda: Lengths("range", (128, 128)))
    """Tokens of a prompt."""
    output: Lengths = field(default_factory=lambda: Lengths("range", (64, 64)))
    """Most tokens of an answer."""
    file: Path | None = None
    """Prompts to take instead of made ones."""
    turns: int = 1
    """Prompts of a conversation that is made."""
    warm_up: int = 1
    """Conversations that come first and do not count."""
    rounds: int = 1
    """Number of times that the load is run on each server."""
    goals: Mapping[str, float] = field(default_factory=dict)
    """Limits in milliseconds that goodput is measured by."""

    @property
    def conversation_count(self) -> int:
        """Number of different conversations of a round, if they are made."""
        schedule = self.schedule
        if schedule.count is not None:
            return schedule.count
        if schedule.rate is not None:
            return max(1, sum(1 for _ in schedule.offsets()))
        return _UNBOUNDED_COUNT

    async def conversations(self, server: BenchServer, seed: int) -> list[Conversation]:
        """Return the conversations of a round. Made ones have their lengths by this server's
        tokenizer."""
        if self.file is not None:
            return read_conversations(self.file, self.output, self.schedule.seed)
        count = self.conversation_count
        return await made_conversations(count, self.turns, self.prompt, self.output, seed, server.count_tokens)


@dataclass(slots=True)
class Outcome:
    """Findings at one server."""

    address: str
    model: str
    rounds: list[Report] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    """Records of all rounds."""

    def total(self, goals: Mapping[str, float]) -> Report:
        """Return the report of all rounds together."""
        client = ClientLoad(
            max(report.client.processor_share for report in self.rounds),
            max(report.client.loop_lag_p99 for report in self.rounds),
        )
        counters = summed(report.acceptance for report in self.rounds if report.acceptance_source == "counters")
        return report_of(self.records, sum(report.seconds for report in self.rounds), goals, client, counters)


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a plan at all its servers."""

    outcomes: Sequence[Outcome]
    exact_prompts: bool
    """True if the prompts have the lengths asked for, by the first server's tokenizer."""
    repeated_prompts: bool
    """True if a server was asked the same prompt more than once."""


async def carry_out(
    plan: Plan,
    servers: Sequence[BenchServer],
    on_record: Callable[[Record], Any] = lambda record: None,
    on_stage: Callable[[str], Any] = lambda stage: None,
) -> Findings:
    """Run a plan on each server in turns, the order of which alternates from round to round.
    ``on_stage`` is told what happens now. Raises what says why a server cannot be reached."""
    outcomes = [Outcome(server.name, await server.describe()) for server in servers]
    exact, held = True, 0
    for number in range(plan.rounds):
        on_stage("making prompts")
        conversations = await plan.conversations(servers[0], plan.schedule.seed + number)
        exact = exact and all(one.exact for one in conversations)
        if number == 0:
            await _warm_up(plan, servers, on_stage)
        schedule = replace(plan.schedule, seed=plan.schedule.seed + number)
        pairs = list(zip(servers, outcomes, strict=True))
        for server, outcome in pairs if number % 2 == 0 else reversed(pairs):
            on_stage(server.name)
            report, records = await run_load(server, conversations, schedule, plan.goals, on_record)
            outcome.rounds.append(report)
            outcome.records.extend(records)
        held = max(held, *(sum(report.completed for report in outcome.rounds[-1:]) for outcome in outcomes))
    repeated = held > len(conversations) * plan.turns or (plan.file is not None and plan.rounds > 1)
    return Findings(outcomes, exact or plan.file is not None, repeated)


async def _warm_up(plan: Plan, servers: Sequence[BenchServer], on_stage: Callable[[str], Any]) -> None:
    """Warm up with conversations that no round holds, unless they come from a file."""
    if not plan.warm_up:
        return
    small = replace(plan, schedule=replace(plan.schedule, count=plan.warm_up))
    conversations = await small.conversations(servers[0], plan.schedule.seed - 1)
    for server in servers:
        on_stage(f"warming up {server.name}")
        await warm_up(server, conversations, plan.warm_up)
