"""The findings of ``slipstream drift`` as a table, and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from slipstream.cli.output import UNBOUNDED
from slipstream.cli.words import plural
from slipstream.drift.advice import advice, shown_fingerprint, shown_task
from slipstream.drift.change import WEEK_HOURS, State
from slipstream.drift.findings import Finding, worse
from slipstream.ratio_sums import RatioSums
from slipstream.v1 import acceptance_pb2

_COLUMNS = ("task", "last week", "now", "", "difference", "since", "temperature", "tokens now", "draft", "target")
_LEAST_COLUMNS = 4
"""Columns that are shown on any terminal."""

_TEMPERATURES = ("0", "to 0.5", "to 1", "to 1.5", "above 1.5")
_STYLES = {State.WORSE: "red", State.BETTER: "green", State.FEW: "dim"}


def print_report(findings: Sequence[Finding], changes: Sequence[acceptance_pb2.TargetChange], console: Console) -> None:
    """Print a table, what to do, and changes of the target in the last week."""
    if findings:
        console.print(_fitting_table(findings, console))
    else:
        console.print("no draft tokens in the last eight days", soft_wrap=True)
    for change in _recent(changes):
        console.print(f"target: {_change(change)}", markup=False, soft_wrap=True)
    for sentence in advice(findings):
        console.print(f"what to do: {sentence}", markup=False, soft_wrap=True)
    if findings:
        console.print(_verdict(findings), soft_wrap=True)


def as_dict(findings: Sequence[Finding], changes: Sequence[acceptance_pb2.TargetChange]) -> dict[str, Any]:
    """Return everything as JSON has it. Times are UTC."""
    return {
        "drift": bool(worse(findings)),
        "findings": [_finding(finding) for finding in findings],
        "target_changes": [
            {
                "since": change.since.ToJsonString(),
                "name": change.name,
                "fingerprint": change.fingerprint,
                "previous_fingerprint": change.previous_fingerprint,
            }
            for change in changes
        ],
        "advice": advice(findings),
    }


def _fitting_table(findings: Sequence[Finding], console: Console) -> Table:
    """Return a table with as many of the last columns as the console has room for."""
    unbounded = console.options.update(max_width=UNBOUNDED)
    for count in range(len(_COLUMNS), _LEAST_COLUMNS, -1):
        table = _table(findings, count)
        if Measurement.get(console, unbounded, table).maximum <= console.width:
            return table
    return _table(findings, _LEAST_COLUMNS)


def _table(findings: Sequence[Finding], count: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in _COLUMNS[:count]:
        right = name in ("last week", "now", "difference", "tokens now")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "task", overflow="fold")
    for finding in findings:
        table.add_row(*_cells(finding)[:count], style=_STYLES.get(finding.comparison.state))
    return table


def _cells(finding: Finding) -> tuple[str, ...]:
    found = finding.comparison
    is_judged = found.state is not State.FEW
    return (
        shown_task(finding.task),
        f"{found.before.value:.3f}" if found.before.denominator else "-",
        f"{found.now.value:.3f}" if found.now.denominator else "-",
        found.state.value,
        f"{found.difference:+.3f} ± {found.error:.3f}" if is_judged else "-",
        "" if found.since is None else datetime.fromtimestamp(found.since * 3600).strftime("%Y-%m-%d %H:%M"),
        _temperature(finding.temperature_class),
        f"{found.now.denominator:.0f}",
        _changed(finding.pair_before.draft, finding.pair.draft),
        _changed(finding.pair_before.target, finding.pair.target),
    )


def _temperature(number: int) -> str:
    return _TEMPERATURES[number] if 0 <= number < len(_TEMPERATURES) else str(number)


def _changed(before: str, now: str) -> str:
    before, now = shown_fingerprint(before), shown_fingerprint(now)
    return now if before == now else f"{before} > {now}"


def _recent(changes: Sequence[acceptance_pb2.TargetChange]) -> list[acceptance_pb2.TargetChange]:
    return [change for change in changes if change.since.seconds > time.time() - WEEK_HOURS * 3600]


def _change(change: acceptance_pb2.TargetChange) -> str:
    when = change.since.ToDatetime(UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    before, now = shown_fingerprint(change.previous_fingerprint), shown_fingerprint(change.fingerprint)
    return f"since {when} it is {change.name} with fingerprint {now}; before that {before}"


def _verdict(findings: Sequence[Finding]) -> str:
    found = worse(findings)
    if found:
        tasks = sorted({shown_task(finding.task) for finding in found})
        return f"drift: {plural(len(tasks), 'task')} below last week: {', '.join(tasks)}"
    if all(finding.comparison.state is State.FEW for finding in findings):
        return "too few tokens to judge: now, or in the week before"
    return "no drift"


def _finding(finding: Finding) -> dict[str, Any]:
    found = finding.comparison
    cause = finding.cause
    return {
        "task": finding.task,
        "temperature_class": finding.temperature_class,
        "state": found.state.value.replace(" ", "_"),
        "since": None if found.since is None else _utc(found.since),
        "now_since": None if found.now_since is None else _utc(found.now_since),
        "last_week": _counted(found.before),
        "now": _counted(found.now),
        "difference": found.difference if found.before.denominator and found.now.denominator else None,
        "standard_error": found.error if found.state is not State.FEW else None,
        "cause": None if cause is None else cause.value,
        "draft": finding.pair.draft,
        "previous_draft": finding.pair_before.draft,
        "target": finding.pair.target,
        "previous_target": finding.pair_before.target,
    }


def _counted(counts: RatioSums) -> dict[str, Any]:
    return {
        "acceptance": counts.value if counts.denominator else None,
        "draft_token_count": int(counts.denominator),
        "accepted_token_count": int(counts.numerator),
        "turn_count": counts.count,
    }


def _utc(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).isoformat().replace("+00:00", "Z")
