"""The verdict, as a table on the terminal and as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from rich.table import Table

from proving.comparison import Row, Verdict
from proving.schedule import least_share
from slipstream.sampling.rule import SAMPLING_VERSION

_COLUMNS = ("disturbance", "prompts", "tokens", "struck", "differing prompts", "first difference")
_MOST_COMPLAINTS = 20


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances that a reader needs to repeat the run."""

    command: str
    commit: str
    seed: int
    prompt_count: int
    token_count: int
    seconds: float

    @property
    def machine(self) -> str:
        """The processor, cores, torch, and the GPU if there is one."""
        device = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
        return f"{_processor()}, {os.cpu_count()} cores, {platform.system()}, torch {version('torch')}{device}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def table(verdict: Verdict) -> Table:
    """Return the verdict as a table for the terminal."""
    shown = Table(title="served against plain decoding: token ids and log-probabilities, bit by bit")
    for column in _COLUMNS:
        shown.add_column(column, justify="right" if column in ("prompts", "tokens", "differing prompts") else "left")
    groups = ([verdict.total], verdict.by_condition, verdict.by_disturbance)
    for rows in groups:
        for row in rows:
            wrong = bool(row.differences) or not row.struck
            shown.add_row(*_cells(row), style="bold red" if wrong else None)
        shown.add_section()
    return shown


def _cells(row: Row) -> Sequence[str]:
    struck = "" if row.strike_count is None else f"{row.unit}: {row.strike_count:,}"
    return (
        row.name,
        f"{row.prompt_count:,}",
        f"{row.token_count:,}",
        struck if row.struck else f"NEVER: {row.unit}",
        f"{len(row.differences):,}",
        _first_difference(row),
    )


def _first_difference(row: Row) -> str:
    if not row.differences:
        return ""
    first = row.differences[0]
    what = "token" if first.token else "log-probability"
    return f"prompt {first.prompt}, position {first.position}, {what}, margin {first.margin:.4g}"


def sentence(verdict: Verdict) -> str:
    """Return the verdict in one line."""
    total = verdict.total
    if verdict.proven:
        return f"{total.prompt_count:,} prompts, {total.token_count:,} tokens: not one bit differs."
    silent = [row.name for row in verdict.by_disturbance if not row.struck]
    parts = [f"{len(total.differences)} of {total.prompt_count:,} prompts differ"]
    parts += [f"{len(verdict.complaints)} complaints"] if verdict.complaints else []
    parts += [f"never struck: {', '.join(silent)}"] if silent else []
    return "; ".join(parts) + "."


def complaints(verdict: Verdict) -> list[str]:
    """Return the first complaints."""
    left_out = len(verdict.complaints) - _MOST_COMPLAINTS
    return verdict.complaints[:_MOST_COMPLAINTS] + ([f"and {left_out} more"] if left_out > 0 else [])


def markdown(verdict: Verdict, circumstances: Circumstances) -> str:
    """Return the whole report as a page."""
    lines = [
        "# Proof",
        "",
        f"**{sentence(verdict)}**",
        "",
        "Each prompt was answered by plain decoding in one fresh process, then again through orchestrator, draft and",
        "verifier on real sockets while the disturbances below struck. Compared are token ids and the bits of the",
        "tokens' float32 log-probabilities. A margin is the lead of the chosen token over the next best in perturbed",
        "logits. `struck` counts what really happened; a disturbance that never struck fails the run.",
        "",
        f"- command: `{circumstances.command}`",
        f"- commit: {circumstances.commit}; seed: {circumstances.seed}; sampling version {SAMPLING_VERSION}",
        f"- {circumstances.prompt_count:,} prompts, {circumstances.token_count} tokens each, every disturbance on at "
        f"least {least_share(circumstances.prompt_count):,} of them",
        f"- machine: {circumstances.machine}",
        f"- time: {circumstances.seconds / 60:.1f} minutes",
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|---|---:|---:|---|---:|---|",
    ]
    for row in (verdict.total, *verdict.by_condition, *verdict.by_disturbance):
        lines.append("| " + " | ".join(_cells(row)) + " |")
    lines += [f"- {complaint}" for complaint in complaints(verdict)]
    return "\n".join(lines) + "\n"
