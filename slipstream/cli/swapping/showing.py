"""A trial's figures as a table and as JSON, and what a swap leaves behind."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from slipstream.cli.swapping.comparison import Figures
from slipstream.cli.swapping.draft_process import DraftProcess
from slipstream.cli.swapping.goal import Finding
from slipstream.ratio_sums import Ratio, RatioSums

_MOST_POSITIONS = 8


def table(finding: Finding) -> Table:
    """Return the figures of both drafts, with standard errors."""
    shown = Table("", "old", "new")
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, values in _rows(finding).items():
        shown.add_row(name, *values)
    return shown


def _rows(finding: Finding) -> dict[str, list[str]]:
    both = finding.old, finding.new
    rows = {
        "sessions": [f"{each.session_count:,}" for each in both],
        "turns": [f"{each.turn_count:,}" for each in both],
        "tokens": [f"{each.token_count:,}" for each in both],
        "acceptance": [_ratio(each.acceptance, 3) for each in both],
        "tokens a step": [_ratio(each.step_length, 2) for each in both],
        "tokens/s of a session": [_ratio(each.speed, 1) for each in both],
    }
    acceptances = [each.position_acceptances for each in both]
    for position in range(min(_MOST_POSITIONS, max(map(len, acceptances)))):
        rows[f"accepted at position {position + 1}"] = [
            f"{values[position]:.3f}" if position < len(values) else "-" for values in acceptances
        ]
    return rows


def as_dict(finding: Finding, *, is_kept: bool, address: str, unreached: Mapping[str, str]) -> dict[str, Any]:
    """Return the result as JSON has it."""
    return {
        "verdict": finding.verdict,
        "why": finding.why,
        "kept": is_kept,
        "address": address,
        "old": _figures(finding.old),
        "new": _figures(finding.new),
        "processes_not_reached": dict(unreached),
    }


def lines_after(
    *, is_kept: bool, process: DraftProcess | None, drafts: Sequence[str], removed: Sequence[str]
) -> Iterator[str]:
    """Yield what a swap leaves behind, and how to make it permanent. ``drafts``: addresses
    of all that the orchestrator would have, the new one last. ``removed``: those of old ones."""
    if not is_kept:
        yield f"the new draft at {drafts[-1]} is removed; the old drafts serve as before"
        return
    if process is not None:
        number = process.process.pid
        yield f"the new draft runs on as process {number}; log {process.log}; it ends with kill {number}"
        yield f"to start it again: {shlex.join(process.command)}"
    yield (
        "permanent: an orchestrator that is started again uses its own --draft. Give it --draft "
        f"{','.join(drafts)} (SLIPSTREAM_ORCHESTRATOR_DRAFT={','.join(drafts)})"
    )
    for old in removed:
        yield f"the old draft service at {old} still runs; stop it once no other orchestrator uses it"


def _ratio(sums: RatioSums, digits: int) -> str:
    ratio = sums.ratio
    return "-" if ratio is None else f"{ratio.value:.{digits}f} ± {ratio.error:.{digits}f}"


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "session_count": figures.session_count,
        "turn_count": figures.turn_count,
        "token_count": figures.token_count,
        "acceptance": _ratio_dict(figures.acceptance.ratio),
        "tokens_per_step": _ratio_dict(figures.step_length.ratio),
        "tokens_per_second": _ratio_dict(figures.speed.ratio),
        "acceptance_per_position": figures.position_acceptances,
    }


def _ratio_dict(ratio: Ratio | None) -> dict[str, float] | None:
    return None if ratio is None else {"value": ratio.value, "standard_error": ratio.error}
