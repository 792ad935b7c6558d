"""Compare answers over HTTP with the same answers over gRPC: tokens a second, and the time to the
first token.

The orchestrator and the gateway are the real ones; the models are arithmetic with set forward
times. Both protocols are measured in turns, with the same prompts. The load generator runs on the
same machine and takes its part of the processors. So steps take so long that two cores have time
left: a machine without would measure its processors. The gateway's processor time varies less.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence

import psutil
from rich.table import Table

from benchmarks.report import Report, add_output
from slipstream.bench.prompts import Conversation
from slipstream.bench.report import Report as LoadReport
from slipstream.bench.running import run_load
from slipstream.bench.schedule import Schedule
from slipstream.bench.server import Asked, BenchServer
from slipstream.bench.servers import Reach, server_at
from slipstream.cli.local import LocalServices, PairSettings, free_address

PROTOCOLS = "gRPC", "HTTP"

_PROMPT_WORDS = 24
_WORDS = "how where which what tell me about the a an of list table module function socket thread file".split()


async def measure(
    addresses: Sequence[str], gateway: psutil.Process, options: argparse.Namespace
) -> tuple[dict[str, list[LoadReport]], list[float]]:
    """Return the reports of each protocol, taken in turns after one that does not count, and the
    gateway's microseconds of processor time for each token."""
    asked = Asked(api="completions", temperature=0, ignore_end=True, draft_length=0)  # a chat by gRPC has a session
    servers: dict[str, BenchServer] = {
        protocol: server_at(address, asked, Reach()) for protocol, address in zip(PROTOCOLS, addresses, strict=True)
    }
    reports: dict[str, list[LoadReport]] = {protocol: [] for protocol in PROTOCOLS}
    costs = []
    try:
        for server in servers.values():
            await server.describe()
        for repetition in range(options.repetitions + 1):
            rng = random.Random(repetition)
            prompts = [" ".join(rng.choices(_WORDS, k=_PROMPT_WORDS)) for _ in range(options.requests)]
            chats = [Conversation((prompt,), options.tokens) for prompt in prompts]
            schedule = Schedule(concurrency=options.streams, count=options.requests, seed=repetition)
            for protocol in PROTOCOLS if repetition % 2 else reversed(PROTOCOLS):
                before = _seconds(gateway)
                report, _ = await run_load(servers[protocol], chats, schedule)
                assert not report.failures, report.failures
                if repetition:
                    reports[protocol].append(report)
                    if protocol == "HTTP":
                        costs.append((_seconds(gateway) - before) / report.output_tokens * 1e6)
    finally:
        await asyncio.gather(*(server.close() for server in servers.values()))
    return reports, costs


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def table_of(reports: dict[str, list[LoadReport]], options: argparse.Namespace) -> Table:
    """Return one row for each protocol, and one that compares them."""
    table = Table(title=f"{options.streams} streams: medians of {options.repetitions}")
    for column in ("", "tokens/s", "first token p50 ms", "first token p95 ms", "between tokens p50 ms"):
        table.add_column(column, justify="left" if not column else "right")
    for protocol, taken in reports.items():
        table.add_row(
            protocol,
            f"{statistics.median(report.tokens_per_second for report in taken):.0f}",
            f"{statistics.median(report.ttft.p50 for report in taken):.1f}",
            f"{statistics.median(report.ttft.p95 for report in taken):.1f}",
            f"{statistics.median(report.itl.p50 for report in taken):.1f}",
        )
    pairs = list(zip(reports["HTTP"], reports["gRPC"], strict=True))
    table.add_row(
        "HTTP to gRPC",
        f"x{statistics.median(http.tokens_per_second / grpc.tokens_per_second for http, grpc in pairs):.2f}",
        f"{statistics.median(http.ttft.p50 - grpc.ttft.p50 for http, grpc in pairs):+.1f}",
        f"{statistics.median(http.ttft.p95 - grpc.ttft.p95 for http, grpc in pairs):+.1f}",
        f"{statistics.median(http.itl.p50 - grpc.itl.p50 for http, grpc in pairs):+.1f}",
    )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.over_http", description=__doc__)
    parser.add_argument("--streams", type=int, default=64, help="answers at a time")
    parser.add_argument("--requests", type=int, default=128, help="answers of one load")
    parser.add_argument("--tokens", type=int, default=40, help="tokens an answer has")
    parser.add_argument("--verify-ms", type=float, default=100, help="a step of the target")
    parser.add_argument("--verify-row-us", type=float, default=0, help="and what each of its tokens adds")
    parser.add_argument("--repetitions", type=int, default=5, help="counted loads; one more warms up")
    parser.add_argument("--name", default="over-http", help="of the files in the output directory")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report(options.name, __doc__ or "", options.output)
    target = f"arithmetic:ends=0&context=65536&forward_ms={options.verify_ms}&row_us={options.verify_row_us}"
    pair = PairSettings(target=target, draft="", gateway_flags=["--model-name", "m", "--log-level", "WARNING"])
    with LocalServices(pair, gateway=free_address()) as local:
        addresses = local.orchestrator_address, f"http://{local.gateway_address}/v1"
        gateway = psutil.Process(local.services["gateway"].process.pid)
        reports, costs = asyncio.run(measure(addresses, gateway, options))
    report.show(table_of(reports, options))
    cost = Table()
    cost.add_column("the gateway's processor time, us a token", justify="right")
    cost.add_row(f"{statistics.median(costs):.0f}")
    report.show(cost)


if __name__ == "__main__":
    main()
