"""Simulate a big node and a network: what overlapping brings for each round trip and acceptance.

The three services are the real ones. The models are arithmetic with set forward times, and the
draft sits behind a link with a set delay.

``of the model`` compares overlapping with its formula. The formula takes what this run measured: a
plain round, a draft's step, how often a branch was there, and how many tokens of a draft survive.
The acceptance is measured too, because a hundred rounds do not have exactly the one that was set,
and a token's acceptance depends on the token before it. ``nominal`` uses the acceptance that was
set. ``bound`` is the most that any scheduling could give: one verification after another, each with
a proposal of the best length that took no time to draft.
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
from slipstream.cli.local import LocalServices, PairSettings, Service, free_address
from slipstream.client import Client, Result, Settings

_LONGEST = 32
"""Most draft tokens that the model weighs."""

_ENOUGH = 50
"""Draft tokens at a position that suffice to estimate survival."""

MODES: dict[str, Settings] = {
    "plain": Settings(draft_length=0),
    "synchronous": Settings(draft_length="adaptive", overlap="none", proposer="draft"),
    "overlapped": Settings(draft_length="adaptive", overlap="enumerate", proposer="draft"),
    "run ahead": Settings(draft_length="adaptive", overlap="run_ahead", proposer="draft"),
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

    @property
    def step(self) -> float:
        """Seconds of a draft's step, as the draft measured them."""
        return sum(r.draft_time for r in self.results) / max(1, sum(r.draft_token_count for r in self.results))

    @property
    def hit_rate(self) -> float:
        hits = sum(result.hit_count for result in self.results)
        return hits / max(1, hits + sum(result.miss_count for result in self.results))


def survivals(results: Sequence[Result]) -> list[float]:
    """Return S_1, S_2 ..: the share of verified draft tokens that survived at each position. The
    last positions, which few proposals reach, take the mean of the others."""
    positions = range(max(len(result.drafted_per_position) for result in results))
    drafted = [sum(at(result.drafted_per_position, position) for result in results) for position in positions]
    accepted = [sum(at(result.accepted_per_position, position) for result in results) for position in positions]
    known = [a / d for a, d in zip(accepted, drafted, strict=True) if d >= _ENOUGH]
    if not known:
        return []
    mean = known[-1] ** (1 / len(known))
    return known + [known[-1] * mean**beyond for beyond in range(1, _LONGEST - len(known) + 1)]


def at(counts: Sequence[int], position: int) -> int:
    return counts[position] if position < len(counts) else 0


def modelled_rate(survival: Sequence[float], verify: float, step: float, round_trip: float, hit_rate: float) -> float:
    """Return the best rate of enumeration at a hit rate: (1 + S_1 .. S_K) / (max(V, R + (K + 1) c)
    + (1 - h) (R + K c))."""
    return max(
        (1 + sum(survival[:length]))
        / (max(verify, round_trip + (length + 1) * step) + (1 - hit_rate) * (round_trip + length * step))
        for length in range(1, len(survival) + 1)
    )


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
                        if repetition:  # the first one warms up, and lets the orchestrator learn
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
        overlap=asked.overlap,
        proposer=asked.proposer,
    )


def table_of(
    acceptance: float, round_trips: Sequence[float], cells: dict[tuple[float, str], Cell], options: argparse.Namespace
) -> Table:
    """Return the tokens/s of each mode, and overlapping beside synchronous, plain and the
    bounds."""
    modes = [mode for mode in MODES if mode in options.modes]
    table = Table(title=f"acceptance {acceptance:g}: tokens/s (medians)")
    for column in ("round trip ms", *modes, "x sync", "x plain", "hit rate", "of the model", "nominal", "of the bound"):
        table.add_column(column, justify="right")
    for round_trip in round_trips:
        row = {mode: cells[round_trip, mode] for mode in modes}
        step = row["synchronous"].step
        verify = 1 / row["plain"].rate  # a round as it is here: the forward, two hops and three processes' Python
        best = row["overlapped"]
        nominal = [acceptance**position for position in range(1, _LONGEST + 1)]
        measured = survivals([*row["synchronous"].results, *best.results]) or nominal
        models = [modelled_rate(s, verify, step, round_trip / 1e3, best.hit_rate) for s in (measured, nominal)]
        bound = (1 + sum(nominal)) / verify
        table.add_row(
            f"{round_trip:g}",
            *(f"{cell.rate:.1f}" for cell in row.values()),
            f"{best.rate / row['synchronous'].rate:.2f}",
            f"{best.rate / row['plain'].rate:.2f}",
            f"{best.hit_rate:.2f}",
            *(f"{best.rate / model:.2f}" for model in models),
            f"{best.rate / bound:.2f}",
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
