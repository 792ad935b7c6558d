"""Plain decoding and hints, simulated: round trips, sessions, wrong drafts, shared processors.

The second table doubles and halves each number that decides about hints. Figures are means over
seeds; the simulation takes no real time, so they are the same on every machine. With ``--replay``
it shows what recorded turns would have made instead.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.recorded_turns import read_turns
from benchmarks.report import Report, add_output
from draft_service import lines, worth
from orchestrator.proposers import draft, paying, trials
from slipstream import ngrams, pace, step_times
from slipstream.engine import hinting
from slipstream.simulation.scenario import Scenario
from slipstream.simulation.simulation import simulate

NUMBERS = (
    "MOST_HINTS",
    "MOST_TOKENS",
    "MOST_LINES",
    "LEAST_SURVIVAL",
    "PROBE_SHARE",
    "MEMORY",
    "PRIOR",
    "RECENT_STEPS",
    "_LEAST_STEPS",
    "_LEAST_CHANGE",
    "STEPS_OF_PACE",
    "SLACK",
    "PROMISES_OF_TRUST",
    "_RECENT_DELAYS",
    "_NGRAM_LENGTH",
    "_NGRAM_ODDS",
    "_GRAM",
    "_LINKS",
    "LONGEST_AGREEMENT",
    "SEND_SECONDS",
    "BRANCH_STEP_SECONDS",
    "LONGEST_HOLD",
    "WINDOW",
    "REST",
    "LEAST_SHARE",
    "WINDOW_SECONDS",
    "WINDOW_TOKENS",
    "REMEMBERED",
    "CLEAR",
    "TRIAL_COST",
)
"""Numbers that a person chose. Each is a constant of one of `MODULES`."""

MODULES = (
    *(importlib.import_module(f"{hinting.__name__}.{found.name}") for found in pkgutil.iter_modules(hinting.__path__)),
    step_times,
    ngrams,
    lines,
    worth,
    draft,
    pace,
    paying,
    trials,
)

NEVER = 10**9
SMALL = replace(Scenario(), verify=0.0025, verify_row=0.0006, draft=0.0005, draft_row=0.0003, is_shared=True)
"""A small pair whose draft shares two cores with it."""


@contextmanager
def changed(name: str, factor: float) -> Iterator[None]:
    """Multiply a number wherever it is used."""
    users = [module for module in MODULES if hasattr(module, name)]
    value = getattr(users[0], name)
    try:
        for module in users:
            setattr(module, name, _times(value, factor))
        yield
    finally:
        for module in users:
            setattr(module, name, value)


def _times(value: Any, factor: float) -> Any:
    """Return a number times ``factor``. In a table of odds the odds are multiplied."""
    if isinstance(value, tuple):
        return tuple([(least, min(1.0, odds * factor)) for least, odds in value])
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def rates(scenario: Scenario, seeds: int) -> list[float]:
    """Return the tokens a second for each seed."""
    return [simulate(replace(scenario, seed=seed + 1)).tokens_per_second for seed in range(seeds)]


def scenarios(tokens: int) -> dict[str, Scenario]:
    """Return the scenarios of the first table. Their plain decoding is that without hints."""
    one = Scenario(token_count=tokens)
    informed = replace(one, spread=0.19)
    many = {
        f"{count} chats, {trip} ms": replace(one, sessions=count, round_trip=trip / 1000, token_count=tokens // 3)
        for count in (8, 32)
        for trip in (0, 10, 80)
    }
    return {
        **{f"1 chat, {trip} ms": replace(one, round_trip=trip / 1000) for trip in (0, 10, 80)},
        **{
            f"the same, no branches, {trip} ms": replace(one, round_trip=trip / 1000, has_branches=False)
            for trip in (0, 10, 80)
        },
        **{f"the same, holding, {trip} ms": replace(one, round_trip=trip / 1000, holds=True) for trip in (0, 10, 80)},
        **{f"the same, odds .99 or .61, {trip} ms": replace(informed, round_trip=trip / 1000) for trip in (0, 10, 80)},
        **many,
        "never right": replace(one, right_from=NEVER),
        "never right, says .99": replace(one, right_from=NEVER, stated=0.99),
        "never right, 32 chats": replace(one, sessions=32, right_from=NEVER, token_count=tokens // 3),
        "shared processors": replace(one, is_shared=True),
        "the same, no holding": replace(one, is_shared=True, holds=False),
        "shared, never right": replace(one, is_shared=True, right_from=NEVER),
        "small pair, shared": replace(SMALL, token_count=tokens),
        "the same, acceptance .97": replace(SMALL, token_count=tokens, acceptance=0.97),
        "the same, never right": replace(SMALL, token_count=tokens, right_from=NEVER),
        "stairs of 8 rows": replace(one, row_multiple=8, verify_row=0.001),
        "8 chats, a fifth of the steps slow": replace(one, sessions=8, token_count=tokens // 3, slow_share=0.2),
        "right after half": replace(one, right_from=tokens // 2),
        "n-grams, half is repeated": replace(one, repeated_share=0.5, takes_ngrams=True),
    }


VARIED = (
    "1 chat, 0 ms",
    "1 chat, 80 ms",
    "8 chats, 10 ms",
    "shared processors",
    "shared, never right",
    "small pair, shared",
    "8 chats, a fifth of the steps slow",
    "right after half",
    "n-grams, half is repeated",
)
"""Scenarios of the second table."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hint_simulation", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of a session")
    parser.add_argument("--seeds", type=int, default=6, help="seeds of the first table")
    parser.add_argument("--varied-seeds", type=int, default=3, help="seeds of the second table; 0 leaves it out")
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="simulate the turns that `slipstream trace SESSION --json > FILE` recorded, instead",
    )
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("hint-simulation", __doc__ or "", options.output)
    if options.replay is not None:
        try:
            report.show(_replayed(options.replay, options.seeds))
        except (OSError, ValueError) as error:
            parser.error(f"argument --replay: {error}")
        return
    known = scenarios(options.tokens)
    table = Table(title="acceptance .8; verification 25 ms + 0.2 per row, draft 3 ms + 0.05 per further row; tokens/s")
    for column in ("scenario", "plain", "hints", "standard error", "hints / plain"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    with Progress(console=report.console) as progress:
        for name, scenario in progress.track(known.items(), description="scenarios"):
            plain = mean(rates(replace(scenario, is_hinted=False), 1))
            hinted = rates(scenario, options.seeds)
            deviation = stdev(hinted) / len(hinted) ** 0.5 if len(hinted) > 1 else 0.0
            table.add_row(
                name, f"{plain:.1f}", f"{mean(hinted):.1f}", f"{deviation:.1f}", f"{mean(hinted) / plain:.3f}"
            )
    report.show(table)
    if options.varied_seeds:
        report.show(_varied(report, known, options.varied_seeds))


def _replayed(file: Path, seeds: int) -> Table:
    table = Table(title="recorded turns, tokens/s after the first step")
    for column in ("turn", "tokens", "right", "recorded", "plain", "hints", "on shared processors"):
        table.add_column(column, justify="left" if column == "turn" else "right")
    for turn in read_turns(file):
        scenario = turn.scenario
        ways = [replace(scenario, is_hinted=False), scenario, replace(scenario, is_shared=True)]
        simulated = [mean(rates(way, seeds)) for way in ways]
        cells = [turn.tokens_per_second, *simulated]
        table.add_row(
            turn.name, str(scenario.token_count), f"{scenario.acceptance:.2f}", *[f"{cell:.0f}" for cell in cells]
        )
    return table


def _varied(report: Report, known: dict[str, Scenario], seeds: int) -> Table:
    table = Table(title="each number halved and doubled: change of tokens/s in percent")
    table.add_column("number")
    for name in VARIED:
        table.add_column(name, justify="right")
    usual = {name: mean(rates(known[name], seeds)) for name in VARIED}
    with Progress(console=report.console) as progress:
        for number in progress.track(NUMBERS, description="numbers"):
            for label, factor in (("halved", 0.5), ("doubled", 2.0)):
                with changed(number, factor):
                    found = [mean(rates(known[name], seeds)) / usual[name] for name in VARIED]
                table.add_row(f"{number} {label}", *[f"{100 * (ratio - 1):+.1f}" for ratio in found])
    return table


if __name__ == "__main__":
    main()
