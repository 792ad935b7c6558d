"""Measure chats that arrive at a fixed rate, with speculation off, fixed and adaptive.

The table has the time to the first token, the time between chunks of tokens, and goodput. The three
services are the real ones. Their models are arithmetic with set forward times that grow with the
tokens in a step, so a loaded verifier has no time to waste. ``worst`` compares adaptive with the
better of plain and fixed. At an acceptance of 0 the draft is an adversary.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from rich.progress import Progress
from rich.table import Table

from benchmarks.many_chats import hold_chats
from benchmarks.report import Picture, Report, add_output
from slipstream.bench.report import Report as LoadReport
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Settings

MODES: dict[str, Settings] = {
    "plain": Settings(draft_length=0),
    "fixed K=4": Settings(draft_length=4),
    "adaptive": Settings(draft_length="adaptive", proposer="draft"),
}


def measure(
    acceptance: float, options: argparse.Namespace, progress: Progress
) -> dict[tuple[int, str], list[LoadReport]]:
    """Return reports for each number of concurrent chats and mode, taken in turn."""
    common = "ends=0&context=65536"
    pair = PairSettings(
        target=f"arithmetic:{common}&forward_ms={options.verify_ms}&row_us={options.verify_row_us}",
        draft=f"arithmetic:{common}&agreement={acceptance}&spread=0.6&forward_ms={options.step_ms}&row_us={options.step_row_us}",
        orchestrator_flags=["--draft-deadline-seconds", "5"],
    )
    reports: dict[tuple[int, str], list[LoadReport]] = {
        (count, mode): [] for count in options.sessions for mode in MODES
    }
    task = progress.add_task(f"acceptance {acceptance:g}", total=len(reports) * (options.repetitions + 1))
    with LocalServices(pair) as local:
        for count in options.sessions:
            for repetition in range(options.repetitions + 1):
                for mode, asked in MODES.items():
                    settings = Settings(
                        temperature=0,
                        max_token_count=options.tokens,
                        draft_length=asked.draft_length,
                        proposer=asked.proposer,
                    )
                    report = hold_chats(
                        local.orchestrator_address, count, 1, settings, seed=repetition, rate=options.rate
                    )
                    assert not report.failures, report.failures
                    if repetition:
                        reports[count, mode].append(report)
                    progress.advance(task)
    return reports


def table_of(acceptance: float, reports: dict[tuple[int, str], list[LoadReport]], options: argparse.Namespace) -> Table:
    """Return one row for each load and mode."""
    table = Table(title=f"acceptance {acceptance:g}: medians of {options.repetitions}")
    columns = (
        "chats",
        "mode",
        "tokens/s",
        "x plain",
        "worst",
        "first p50/p95/p99 ms",
        "chunk p50/p95/p99 ms",
        "goodput",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "mode" else "right")
    for count in options.sessions:
        rates = {mode: [report.tokens_per_second for report in reports[count, mode]] for mode in MODES}
        for mode in MODES:
            taken = reports[count, mode]
            ratios = [ours / plain for ours, plain in zip(rates[mode], rates["plain"], strict=True)]
            best = [max(pair) for pair in zip(rates["plain"], rates["fixed K=4"], strict=True)]
            worst = statistics.median(ours / other for ours, other in zip(rates[mode], best, strict=True))
            table.add_row(
                str(count),
                mode,
                f"{statistics.median(rates[mode]):.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{worst:.2f}" if mode == "adaptive" else "",
                _milliseconds([report.ttft for report in taken]),
                _milliseconds([report.itl for report in taken]),
                f"{statistics.median(_goodput(report) for report in taken):.0f}",
            )
    return table


def _milliseconds(percentiles: Sequence[object]) -> str:
    values = [statistics.median(getattr(p, name) for p in percentiles) for name in ("p50", "p95", "p99")]
    return "/".join(f"{value:.0f}" for value in values)


def _goodput(report: LoadReport) -> float:
    return report.goodput.tokens_per_second if report.goodput else 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.0, 0.6, 0.9], help="of the draft's tokens")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16, 48], help="chats at once")
    parser.add_argument("--rate", type=float, default=None, help="chats begun a second; left out: all at once")
    parser.add_argument("--verify-ms", type=float, default=25, help="a verification's forward")
    parser.add_argument("--verify-row-us", type=float, default=200, help="and what each of its tokens adds")
    parser.add_argument("--step-ms", type=float, default=3, help="a draft's step")
    parser.add_argument("--step-row-us", type=float, default=20, help="and what each of its tokens adds")
    parser.add_argument("--tokens", type=int, default=120, help="tokens an answer has")
    parser.add_argument("--repetitions", type=int, default=5, help="counted loads; one more warms up")
    parser.add_argument("--name", default="load", help="of the files in the output directory")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report(options.name, __doc__ or "", options.output)
    with Progress(console=report.console) as progress:
        for acceptance in options.acceptance:
            reports = measure(acceptance, options, progress)
            report.show(table_of(acceptance, reports, options), Picture("chats", ("tokens/s",), by="mode", log=True))


if __name__ == "__main__":
    main()
