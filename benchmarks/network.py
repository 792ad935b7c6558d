"""Simulate a big node and a network: tokens/s for each round trip to the draft and acceptance.

The three services are the real ones. The models are arithmetic with set forward times, and the
draft sits behind a link with a set delay. ``bound`` is the most that any scheduling could give: one
verification after another, each with hints of the best length that took no time to draft.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.progress import Progress
from rich.table import Table

from benchmarks.link import Link
from benchmarks.report import Picture, Report, add_output
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, Result, Settings

_LONGEST = 32
"""Most draft tokens that the model weighs."""

MODES: dict[str, Settings] = {
    "plain": Settings(draft_length=0),
    "fixed 4": Settings(draft_length=4, proposer="draft"),
    "fixed 8": Settings(draft_length=8, proposer="draft"),
    "adaptive": Settings(draft_length="adaptive", proposer="draft"),
}


@dataclass
class Cell:
    """One mode at one acceptance and round trip."""

    rates: list[float] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def measure(
    acceptance: float, round_trips: Sequence[float], options: argparse.Namespace, progress: Progress
) -> dict[tuple[float, str], Cell]:
    """Run all modes at all round trips, in turn, ``options.repetitions`` times."""
    common = "ends=0&context=65536&vocabulary=259"
    pair = PairSettings(
        target=f"arithmetic:{common}&forward_ms={options.verify_ms}",
        draft=f"arithmetic:{common}&agreement={acceptance}&spread={options.spread}&forward_ms={options.step_ms}",
    )
    modes = [mode for mode in MODES if mode in options.modes]
    cells = {(round_trip, mode): Cell() for round_trip in round_trips for mode in modes}
    task = progress.add_task(f"acceptance {acceptance:g}", total=len(cells) * (options.repetitions + 1))
    with LocalServices(pair) as local, Link(local.draft_address) as link:
        for round_trip in round_trips:
            link.round_trip = round_trip / 1e3
            flags = ["--verifier", local.verifier_address, "--draft", link.address]
            service = Service("orchestrator", "orchestrator", free_address(), flags, {})
            try:
                service.wait_until_healthy(60)
                with Client(service.address) as client:
                    for repetition, mode in itertools.product(range(options.repetitions + 1), modes):
                        prompt = [5 + repetition, 7, int(acceptance * 100), int(round_trip) + 3]
                        result = client.generate(prompt, _settings(mode, options.tokens)).wait()
                        if repetition:  # the first one warms up, and lets the verifier learn
                            cells[round_trip, mode].rates.append(result.tokens_per_second)
                            cells[round_trip, mode].results.append(result)
                        progress.advance(task)
            finally:
                service.stop()
    return cells


def _settings(mode: str, tokens: int) -> Settings:
    asked = MODES[mode]
    return Settings(
        temperature=0,
        max_token_count=tokens,
        draft_length=asked.draft_length,
        proposer=asked.proposer,
    )


def table_of(
    acceptance: float, round_trips: Sequence[float], cells: dict[tuple[float, str], Cell], options: argparse.Namespace
) -> Table:
    """Return the tokens/s of each mode, and adaptive beside plain, the best fixed length and the
    bound."""
    modes = [mode for mode in MODES if mode in options.modes]
    table = Table(title=f"acceptance {acceptance:g}: tokens/s (medians)")
    for column in ("round trip ms", *modes, "x fixed", "x plain", "of the bound"):
        table.add_column(column, justify="right")
    bound = sum(acceptance**position for position in range(_LONGEST + 1)) / (options.verify_ms / 1e3)
    for round_trip in round_trips:
        rates = {mode: cells[round_trip, mode].rate for mode in modes}
        best = max((rate for mode, rate in rates.items() if mode.startswith("fixed")), default=0.0)
        own = rates.get("adaptive", 0.0)
        table.add_row(
            f"{round_trip:g}",
            *(f"{rate:.1f}" for rate in rates.values()),
            f"{own / best:.2f}" if best else "",
            f"{own / rates['plain']:.2f}" if "plain" in rates else "",
            f"{own / bound:.2f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.6, 0.8, 0.9], help="of the draft's tokens")
    parser.add_argument("--round-trips", type=float, nargs="+", default=[0, 1, 5, 10, 30, 80], help="ms to the draft")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--verify-ms", type=float, default=25, help="a verification's forward")
    parser.add_argument("--step-ms", type=float, default=3, help="a draft's step")
    parser.add_argument("--spread", type=float, default=0.6, help="odds that a wrong draft's next best token is right")
    parser.add_argument("--tokens", type=int, default=150, help="tokens an answer has")
    parser.add_argument("--repetitions", type=int, default=5, help="counted answers; one more warms up")
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("network", __doc__ or "", options.output)
    with Progress(console=report.console) as progress:
        for acceptance in options.acceptance:
            cells = measure(acceptance, options.round_trips, options, progress)
            table = table_of(acceptance, options.round_trips, cells, options)
            report.show(table, Picture("round trip ms", tuple(mode for mode in MODES if mode in options.modes)))


if __name__ == "__main__":
    main()
