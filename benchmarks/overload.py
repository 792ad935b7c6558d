"""More turns than there is capacity for: what is done in time, what is refused and how, and how
long admitted turns wait.

The three services are real and use gRPC. Their models are arithmetic with set forward times, and
the verifier is the bottleneck. Clients that wait for each other measure the capacity. Then turns
arrive in a Poisson process at multiples of it, each with a deadline. Goodput counts the tokens of
turns that ended within their deadlines. ``insists`` is a client that retries when its RetryInfo
says so, until its deadline. ``leaves`` is a client that accepts a refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import grpc
from rich.table import Table

from benchmarks.report import Report, add_output
from slipstream.bench.report import Distribution
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Settings
from slipstream.errors import Code
from slipstream.rpc.channel import open_channel
from slipstream.rpc.status import error_of_call
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc

_CONNECTIONS = 8
_TOKENS = range(3, 250)


@dataclass
class Outcome:
    """Results of one load. Times are in seconds."""

    seconds: float = 0.0
    offered_count: int = 0
    """Number of turns."""
    done_count: int = 0
    """Number of turns that ended within their deadlines."""
    token_count: int = 0
    """Tokens of the turns that ended within their deadline."""
    firsts: list[float] = field(default_factory=list)
    """Seconds from the last request to the first token."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Refusals by reason."""
    bare_refusal_count: int = 0
    """Number of refusals without a time to retry."""
    failures: Counter[str] = field(default_factory=Counter)
    """Admitted turns that did not end in time, by reason."""

    @property
    def goodput(self) -> float:
        """Tokens a second of turns within their deadlines."""
        return self.token_count / self.seconds if self.seconds else 0.0


class Clients:
    """All clients, on a few connections."""

    def __init__(self, address: str, options: argparse.Namespace) -> None:
        self._options = options
        self._channels = [open_channel(address) for _ in range(_CONNECTIONS)]
        self._stubs = [orchestrator_pb2_grpc.OrchestratorServiceStub(channel) for channel in self._channels]
        self._rng = random.Random(options.seed)
        self._number = 0

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()

    async def ask(self, outcome: Outcome, deadline: float, *, insists: bool, until: float = float("inf")) -> None:
        """Run one turn. A turn that ends after ``until`` is not counted."""
        outcome.offered_count += 1
        give_up = time.monotonic() + deadline
        while True:
            refused = await self._attempt(outcome, give_up, until)
            now = time.monotonic()
            if refused is None or not insists or now + refused >= min(give_up, until):
                return
            await asyncio.sleep(refused)

    async def _attempt(self, outcome: Outcome, give_up: float, until: float) -> float | None:
        """Return the seconds until the retry; None if there is none."""
        self._number += 1
        stub = self._stubs[self._number % len(self._stubs)]
        asked, first, count = time.monotonic(), 0.0, 0
        try:
            async for response in stub.Generate(self._request(), timeout=max(0.001, give_up - asked)):
                if response.event.HasField("delta"):
                    first = first or time.monotonic() - asked
                    count += len(response.event.delta.token_ids)
        except grpc.aio.AioRpcError as failed:
            error = error_of_call(failed)
            if error.code is Code.RESOURCE_EXHAUSTED:
                outcome.refusals[error.reason] += 1
                outcome.bare_refusal_count += error.retry_after is None
                return error.retry_after
            outcome.failures[error.reason] += 1
            return None
        outcome.firsts.append(first)
        if time.monotonic() <= min(give_up, until):
            outcome.done_count += 1
            outcome.token_count += count
        return None

    def _request(self) -> orchestrator_pb2.GenerateRequest:
        tokens = self._rng.choices(_TOKENS, k=self._options.prompt)
        settings = Settings(temperature=0, max_token_count=self._options.tokens)
        return orchestrator_pb2.GenerateRequest(
            tokens=orchestrator_pb2.TokenList(token_ids=tokens), settings=settings.message()
        )

    async def closed(self, concurrency: int, seconds: float) -> Outcome:
        """Keep ``concurrency`` turns running: each client asks again as soon as it has its
        answer."""
        outcome, until = Outcome(seconds=seconds), time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < until:
                await self.ask(outcome, self._options.deadline, insists=True, until=until)

        await asyncio.gather(*(one() for _ in range(concurrency)))
        return outcome

    async def open(self, rate: float, seconds: float, *, insists: bool) -> Outcome:
        """Start ``rate`` turns a second. The first ``--lead`` seconds fill the queue and are not
        counted."""
        counted = time.monotonic() + self._options.lead
        before, outcome, until = Outcome(), Outcome(seconds=seconds), counted + seconds
        tasks = []
        while (now := time.monotonic()) < until:
            await asyncio.sleep(min(self._rng.expovariate(rate), until - now))
            told = before if now < counted else outcome
            tasks.append(asyncio.create_task(self.ask(told, self._options.deadline, insists=insists, until=until)))
        await asyncio.gather(*tasks)
        return outcome

    async def burst(self, count: int, deadline: float, *, insists: bool) -> Outcome:
        """Start all turns at once."""
        outcome, started = Outcome(), time.monotonic()
        await asyncio.gather(*(self.ask(outcome, deadline, insists=insists) for _ in range(count)))
        outcome.seconds = time.monotonic() - started
        return outcome


def table(title: str) -> Table:
    """Columns of a row that `show` adds."""
    made = Table(title=title)
    columns = ("load", "clients", "turns", "in time", "tokens/s", "of peak", "refused", "bare", "failed")
    for column in (*columns, "first p50/p99 ms", "p99 x unloaded"):
        made.add_column(column, justify="left" if column == "clients" else "right")
    return made


def show(made: Table, load: str, clients: str, outcome: Outcome, peak: float, unloaded: float) -> None:
    """Show one load. ``unloaded`` is the time to a first token without load, in ms; 0 if not
    known."""
    first = Distribution.of(outcome.firsts)
    made.add_row(
        load,
        clients,
        str(outcome.offered_count),
        str(outcome.done_count),
        f"{outcome.goodput:.0f}",
        f"{outcome.goodput / peak:.2f}" if peak else "",
        str(outcome.refusals.total()),
        str(outcome.bare_refusal_count),
        ", ".join(f"{count} {reason}" for reason, count in outcome.failures.items()) or "0",
        f"{first.p50:.0f}/{first.p99:.0f}",
        f"{first.p99 / unloaded:.1f}" if unloaded else "",
    )


async def overload(clients: Clients, options: argparse.Namespace) -> Table:
    """Measure the capacity, then multiples of it."""
    made = table(f"turns of {options.prompt} + {options.tokens} tokens, deadline {options.deadline:g} s")
    await clients.closed(4, options.settling)
    closed = {count: await clients.closed(count, options.settling) for count in options.concurrency}
    capacity = max(outcome.goodput for outcome in closed.values())
    unloaded = Distribution.of(closed[min(closed)].firsts).p50
    opened = {}
    for load in options.loads:
        for insists in (False, True):
            rate = load * capacity / options.tokens
            opened[load, insists] = await clients.open(rate, options.seconds, insists=insists)
    peak = max(outcome.goodput for outcome in (*closed.values(), *opened.values()))
    for count, outcome in closed.items():
        show(made, f"{count} at a time", "insists", outcome, peak, unloaded)
    for (load, insists), outcome in opened.items():
        show(made, f"{load:g}x", "insists" if insists else "leaves", outcome, peak, unloaded)
    return made


async def bursts(clients: Clients, options: argparse.Namespace) -> Table:
    """Make many calls at once, each with a deadline."""
    made = table(f"{' and '.join(map(str, options.bursts))} calls at once")
    for size, deadline in options.bursts:
        for insists in (False, True):
            outcome = await clients.burst(size, deadline, insists=insists)
            show(made, f"{size} calls, {deadline:g} s", "insists" if insists else "leaves", outcome, 0.0, 0.0)
    return made


async def beside(clients: Clients, options: argparse.Namespace) -> Table:
    """Start a new prompt beside sessions that are busy all the time."""
    made = Table(title=f"a new prompt beside {options.busy} busy sessions")
    for column in ("beside", "prompts", "first p50/p99 ms", "longest ms"):
        made.add_column(column, justify="right")
    busy = Outcome()
    for count in (0, options.busy):
        stop = time.monotonic() + options.settling + 2
        running = [asyncio.create_task(_keep_busy(clients, busy, stop)) for _ in range(count)]
        await asyncio.sleep(1)
        outcome = Outcome()
        while time.monotonic() < stop - 1:
            await clients.ask(outcome, options.deadline, insists=False)
        await asyncio.gather(*running)
        first = Distribution.of(outcome.firsts)
        longest = max(outcome.firsts, default=0.0)
        refused = f", {outcome.refusals.total()} refused" if outcome.refusals else ""
        made.add_row(
            f"{count} sessions",
            f"{outcome.offered_count}{refused}",
            f"{first.p50:.0f}/{first.p99:.0f}",
            f"{longest * 1e3:.0f}",
        )
    return made


async def _keep_busy(clients: Clients, outcome: Outcome, until: float) -> None:
    while time.monotonic() < until:
        await clients.ask(outcome, 600, insists=True, until=until)


def serve(
    options: argparse.Namespace,
    forward_ms: float,
    row_us: float,
    measure: Callable[[Clients, argparse.Namespace], Coroutine[None, None, Table]],
) -> Table:
    """Measure services started here."""
    common = "ends=0&context=65536"
    pair = PairSettings(
        target=f"arithmetic:{common}&forward_ms={forward_ms}&row_us={row_us}",
        draft=f"arithmetic:{common}&agreement={options.acceptance}&forward_ms={options.step_ms}"
        if options.draft
        else "",
        orchestrator_flags=options.orchestrator_flag,
    )

    async def run(address: str) -> Table:
        clients = Clients(address, options)
        try:
            return await measure(clients, options)
        finally:
            await clients.close()

    with LocalServices(pair) as local:
        return asyncio.run(run(local.orchestrator_address))


def _burst(text: str) -> tuple[int, float]:
    count, _, seconds = text.partition(":")
    return int(count), float(seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.5, 1, 2, 4], help="multiples of the capacity")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], help="of those who find it")
    parser.add_argument("--seconds", type=float, default=30, help="of each load")
    parser.add_argument("--lead", type=float, default=0, help="seconds of each load before those that are counted")
    parser.add_argument("--settling", type=float, default=10, help="seconds of each concurrency")
    parser.add_argument("--deadline", type=float, default=10, help="of a turn, in seconds")
    parser.add_argument("--prompt", type=int, default=20, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=40, help="tokens of an answer")
    parser.add_argument("--forward-ms", type=float, default=10, help="a verification's forward")
    parser.add_argument("--row-us", type=float, default=1500, help="and what each of its tokens adds")
    parser.add_argument("--acceptance", type=float, default=0.8, help="of the draft's tokens")
    parser.add_argument("--step-ms", type=float, default=2, help="a draft's step")
    parser.add_argument("--no-draft", dest="draft", action="store_false", help="decode plainly")
    parser.add_argument(
        "--bursts", type=_burst, nargs="*", default=[(300, 10.0), (240, 120.0)], help="CALLS:SECONDS of deadline"
    )
    parser.add_argument(
        "--busy", type=int, default=64, help="sessions beside which a new prompt comes; 0: leave it out"
    )
    parser.add_argument("--orchestrator-flag", action="append", default=[], help="such as --max-running-turns=16")
    parser.add_argument("--seed", type=int, default=0)
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("overload", __doc__ or "", options.output)
    if options.loads:
        report.show(serve(options, options.forward_ms, options.row_us, overload))
    if options.bursts:
        report.show(serve(options, 0, 2000, bursts))
    if options.busy:
        report.show(serve(options, 25, 200, beside))


if __name__ == "__main__":
    main()
