"""Measure what observing costs, in tokens a second.

The cases are: nothing observed, metrics scraped, and turns, rounds or everything traced. They take
turns, so that a busy minute meets each of them. The collector is a process that takes spans and
drops them. It shares the processors with the services here, as it would not elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psutil
from rich.table import Table

from benchmarks.many_chats import hold_chats
from benchmarks.report import Report, add_output
from benchmarks.scale import orchestrator
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Settings
from slipstream.interpreter import module_command

_SCRAPE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way of observing: flags of the orchestrator, and whether there is a collector."""

    name: str
    flags: tuple[str, ...] = ()
    collects: bool = False


@dataclass(slots=True)
class Seen:
    """Measurements of one way of observing."""

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)


@contextmanager
def collector() -> Iterator[str]:
    """Run a process that takes spans and drops them, and yield its address."""
    address = free_address()
    process = subprocess.Popen(module_command("benchmarks.sink", address))
    try:
        yield address
    finally:
        process.terminate()
        process.wait()


@contextmanager
def scraping(address: str) -> Iterator[None]:
    """Read an orchestrator's metrics every second."""
    stopped = threading.Event()

    def scrape() -> None:
        while not stopped.wait(_SCRAPE_SECONDS):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                answer.read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextmanager
def observed(way: Way, sink: str, options: argparse.Namespace) -> Iterator[Service]:
    """Run an orchestrator that is observed in one way."""
    os.environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    if way.collects:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{sink}"
    with orchestrator(options, *way.flags) as service:
        yield service


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observing", description=__doc__)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--acceptance", type=float, default=0.8, help="of the draft's tokens")
    parser.add_argument("--draft-length", type=int, default=8, help="draft tokens a round")
    parser.add_argument("--verify-ms", type=float, default=25, help="what a verification takes")
    parser.add_argument("--step-ms", type=float, default=0, help="what a draft's token takes")
    parser.add_argument("--tokens", type=int, default=400, help="tokens an answer has")
    parser.add_argument("--turns", type=int, default=4, help="of a session, in one repetition")
    parser.add_argument("--repetitions", type=int, default=7)
    add_output(parser)
    options = parser.parse_args(arguments)
    gc.freeze()
    gc.set_threshold(50_000)
    report = Report("observing", __doc__ or "", options.output)
    metrics = free_address()
    ways = (
        Way("nothing"),
        Way("metrics", ("--metrics-address", metrics)),
        *(Way(f"traces, {detail}", ("--trace-detail", detail), collects=True) for detail in ("turn", "round", "full")),
    )
    seen = {way.name: Seen() for way in ways}
    generation = Settings(temperature=0, draft_length=options.draft_length, max_token_count=options.tokens)
    with ExitStack() as stack:
        sink = stack.enter_context(collector())
        services = [(way, stack.enter_context(observed(way, sink, options))) for way in ways]
        stack.enter_context(scraping(metrics))
        for _, service in services:
            hold_chats(service.address, options.sessions, 1, generation)
        for repetition in range(options.repetitions):
            for way, service in services[repetition % len(services) :] + services[: repetition % len(services)]:
                process = psutil.Process(service.process.pid)
                spent = sum(process.cpu_times()[:2])
                result = hold_chats(service.address, options.sessions, options.turns, generation, seed=repetition)
                assert not result.failures, result.failures
                seen[way.name].rates.append(result.tokens_per_second)
                seen[way.name].costs.append((sum(process.cpu_times()[:2]) - spent) / result.output_tokens)
                report.console.print(f"{way.name:>14} {result.tokens_per_second:8.0f} tokens/s", style="dim")
    table = Table(title=f"{options.sessions} sessions, {options.draft_length} draft tokens a round")
    for column in ("looked at by", "tokens/s", "x nothing", "CPU us/token", "x nothing "):
        table.add_column(column, justify="left" if column == "looked at by" else "right")
    base = seen["nothing"]
    for name, each in seen.items():
        table.add_row(
            name,
            f"{statistics.median(each.rates):.0f}",
            f"{_ratio(each.rates, base.rates):.3f}",
            f"{statistics.median(each.costs) * 1e6:.1f}",
            f"{_ratio(each.costs, base.costs):.3f}",
        )
    report.show(table)


def _ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the ratios of consecutive measurements."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


if __name__ == "__main__":
    main()
