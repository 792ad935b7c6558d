"""One orchestrator process under many sessions: tokens a second, processor time a token, and a
round by its context length.

One process simulates draft and verifier and computes next to nothing. The clients are coroutines of
another process. All sockets are real. On few cores the three compete. So the table also shows
tokens per second of the orchestrator's own processor time, which is its rate on a core of its own.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.table import Table

from benchmarks.many_chats import hold_chats
from benchmarks.report import Picture, Report, add_output
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Settings
from slipstream.interpreter import module_command


@contextmanager
def orchestrator(options: argparse.Namespace, *flags: str, store: str = "") -> Iterator[Service]:
    """Run an orchestrator over simulated peers. It keeps its sessions in its own file unless
    ``store`` says where."""
    with tempfile.TemporaryDirectory() as directory:
        place = store or f"{directory}/sessions.db"
        yield from _orchestrator(options, "--store", place, *flags)


def _orchestrator(options: argparse.Namespace, *flags: str) -> Iterator[Service]:
    address = free_address()
    command = module_command("benchmarks.simulated", "--address", address)
    command += ["--agreement", str(options.acceptance), "--verify-ms", str(options.verify_ms)]
    command += ["--step-ms", str(options.step_ms)]
    peers = subprocess.Popen(command)
    try:
        _await(address)
        service = Service(
            "orchestrator", "orchestrator", free_address(), ["--verifier", address, "--draft", address, *flags], {}
        )
        try:
            service.wait_until_healthy(60)
            yield service
        finally:
            service.stop()
    finally:
        peers.terminate()
        peers.wait()


def _await(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]


def throughput(sessions: Sequence[int], options: argparse.Namespace) -> Table:
    """Measure tokens a second by concurrent sessions."""
    table = Table(title=f"sessions at once, draft length {options.draft_length}")
    for column in ("sessions", "tokens/s", "CPU us/token", "tokens/CPU s", "MiB", "KiB/session"):
        table.add_column(column, justify="right")
    generation = Settings(temperature=0, draft_length=options.draft_length, max_token_count=options.tokens)
    with orchestrator(options) as service:
        process = psutil.Process(service.process.pid)
        hold_chats(service.address, 4, 1, generation)
        for count in sessions:
            before = process.memory_info().rss
            rates, costs = [], []
            for repetition in range(options.repetitions):
                spent = sum(process.cpu_times()[:2])
                report = hold_chats(service.address, count, 1, generation, seed=repetition)
                assert not report.failures, report.failures
                rates.append(report.tokens_per_second)
                costs.append((sum(process.cpu_times()[:2]) - spent) / report.output_tokens)
            memory = process.memory_info().rss
            cost = statistics.median(costs)
            table.add_row(
                str(count),
                f"{statistics.median(rates):.0f}",
                f"{cost * 1e6:.0f}",
                f"{1 / cost:.0f}",
                f"{memory / 2**20:.0f}",
                f"{max(0, memory - before) / 2**10 / (count * options.repetitions):.0f}",
            )
    return table


def durability(sessions: int, options: argparse.Namespace) -> Table:
    """Measure what writing turns down costs. Two orchestrators take turns, and one of them keeps
    sessions in memory."""
    table = Table(title=f"where sessions are kept, {sessions} at once, in turns")
    for column in ("store", "tokens/s", "CPU us/token", "x memory"):
        table.add_column(column, justify="right")
    generation = Settings(temperature=0, draft_length=options.draft_length, max_token_count=options.tokens)
    stores = {"memory": "memory", "file": "", **({"postgresql": options.postgresql} if options.postgresql else {})}
    rates: dict[str, list[float]] = {name: [] for name in stores}
    costs: dict[str, list[float]] = {name: [] for name in stores}
    with ExitStack() as stack:
        services = {name: stack.enter_context(orchestrator(options, store=place)) for name, place in stores.items()}
        processes = {name: psutil.Process(service.process.pid) for name, service in services.items()}
        for service in services.values():
            hold_chats(service.address, 4, 1, generation)
        for repetition in range(4 * options.repetitions):
            for name in list(stores)[:: 1 if repetition % 2 else -1]:
                spent = sum(processes[name].cpu_times()[:2])
                report = hold_chats(services[name].address, sessions, 1, generation, seed=repetition)
                assert not report.failures, report.failures
                rates[name].append(report.tokens_per_second)
                costs[name].append((sum(processes[name].cpu_times()[:2]) - spent) / report.output_tokens)
    for name in stores:
        ratios = [rate / plain for rate, plain in zip(rates[name], rates["memory"], strict=True)]
        cost = statistics.median(costs[name]) * 1e6
        table.add_row(name, f"{statistics.median(rates[name]):.0f}", f"{cost:.0f}", f"{statistics.median(ratios):.3f}")
    return table


def processes(counts: Sequence[int], options: argparse.Namespace) -> Table:
    """Measure tokens a second by processes behind the port, at most sessions."""
    sessions = max(options.sessions)
    table = Table(title=f"processes behind one port, {sessions} sessions")
    for column in ("processes", "tokens/s", "CPU us/token"):
        table.add_column(column, justify="right")
    generation = Settings(temperature=0, draft_length=options.draft_length, max_token_count=options.tokens)
    for count in counts:
        with orchestrator(options, "--process-count", str(count)) as service:
            time.sleep(3)  # the port is served once the first process listens
            family = _family(service)
            hold_chats(service.address, 4, 1, generation)
            rates, costs = [], []
            for repetition in range(options.repetitions):
                spent = _cpu_seconds(family)
                report = hold_chats(service.address, sessions, 1, generation, seed=repetition)
                assert not report.failures, report.failures
                rates.append(report.tokens_per_second)
                costs.append((_cpu_seconds(family) - spent) / report.output_tokens)
        table.add_row(str(count), f"{statistics.median(rates):.0f}", f"{statistics.median(costs) * 1e6:.0f}")
    return table


def _family(service: Service) -> list[psutil.Process]:
    process = psutil.Process(service.process.pid)
    return [process, *process.children(recursive=True)]


def _cpu_seconds(family: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family)


def contexts(lengths: Sequence[int], options: argparse.Namespace) -> Table:
    """Measure what a round costs besides its peers, by context length: the time between the first
    token and the last."""
    table = Table(title="one session, by context length: what a round takes besides its peers")
    for column in ("context", "rounds", "round ms", "own ms", "network ms", "own + network", "x shortest"):
        table.add_column(column, justify="right")
    settings = Settings(temperature=0, draft_length=options.draft_length, max_token_count=options.tokens)
    shortest = None
    with orchestrator(options) as service, Client(service.address) as client:
        for length in lengths:
            own, network, rounds = [], [], []
            for repetition in range(options.repetitions + 1):
                prompt = [3 + (position * 7 + repetition) % 250 for position in range(length)]
                result = client.generate(prompt, settings).wait()
                if repetition:
                    later = result.round_count - 1
                    seconds = (result.total_time - result.time_to_first_token) / later
                    peers = (result.verify_time + result.draft_time + result.queue_time) / result.round_count
                    between = result.network_time / result.round_count
                    rounds.append(seconds)
                    own.append(seconds - peers - between)
                    network.append(between)
            medians = [statistics.median(times) * 1e3 for times in (rounds, own, network)]
            besides = medians[1] + medians[2]
            shortest = shortest or besides
            table.add_row(
                f"{length:,}",
                str(result.round_count),
                *(f"{value:.2f}" for value in (*medians, besides)),
                f"{besides / shortest:.2f}",
            )
    return table


def _draft_length(text: str) -> int | Literal["adaptive"]:
    return "adaptive" if text == "adaptive" else int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 8, 64, 256, 512])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="behind one port")
    parser.add_argument(
        "--durability", type=int, default=64, help="sessions at once where stores are compared; 0: none"
    )
    parser.add_argument("--postgresql", default="", help="address of an empty database to compare as well")
    parser.add_argument("--contexts", type=int, nargs="*", default=[1_000, 8_000, 32_000, 128_000])
    parser.add_argument("--acceptance", type=float, default=0.8, help="of the draft's tokens")
    parser.add_argument("--draft-length", type=_draft_length, default=8, help="draft tokens a round, or adaptive")
    parser.add_argument("--verify-ms", type=float, default=25, help="what a verification takes")
    parser.add_argument("--step-ms", type=float, default=0, help="what a draft's token takes")
    parser.add_argument("--tokens", type=int, default=200, help="tokens an answer has")
    parser.add_argument("--repetitions", type=int, default=5)
    add_output(parser)
    options = parser.parse_args(arguments)
    gc.freeze()
    gc.set_threshold(50_000)  # as the orchestrator: what it shares the processors with should not slow it down
    report = Report("scale", __doc__ or "", options.output)
    if options.sessions:
        report.show(throughput(options.sessions, options), Picture("sessions", ("tokens/s",), log=True))
    if options.processes and options.sessions:
        report.show(processes(options.processes, options))
    if options.durability:
        report.show(durability(options.durability, options))
    if options.contexts:
        shown = Picture("context", ("own ms", "network ms", "own + network"), log=True, y_label="ms a round")
        report.show(contexts(options.contexts, options), shown)


if __name__ == "__main__":
    main()
