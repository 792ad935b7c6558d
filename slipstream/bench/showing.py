"""The findings of a load as JSON, as tables and as remarks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from slipstream.bench.plan import Findings, Plan
from slipstream.bench.ratios import FIGURES, Ratio, ratios
from slipstream.bench.report import FORMAT, Distribution, Report
from slipstream.version import VERSION

_TIMES = {
    "TTFT": "ttft",
    "ITL": "itl",
    "TPOT": "tpot",
    "end to end": "e2el",
}
_LABELS = {
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    **{f"{name}_{rank}": f"{label} {rank}, ms" for label, name in _TIMES.items() for rank in ("p50", "p99")},
}


def as_dict(plan: Plan, findings: Findings) -> dict[str, Any]:
    """Return everything for JSON."""
    schedule = plan.schedule
    compared = _ratios(findings)
    return {
        "format": FORMAT,
        "slipstream_version": VERSION,
        "load": {
            "rate": schedule.rate,
            "arrivals": schedule.arrivals if schedule.rate is not None else None,
            "concurrency": schedule.concurrency,
            "conversations": schedule.count,
            "turns": plan.turns if plan.file is None else 1,
            "duration_s": schedule.duration,
            "seed": schedule.seed,
            "rounds": plan.rounds,
            "prompts": "file" if plan.file else "made",
            "prompt_lengths": "exact" if findings.exact_prompts else "approximate",
            "repeated_prompts": findings.repeated_prompts,
        },
        "servers": [
            {
                "address": outcome.address,
                "model": outcome.model,
                **outcome.total(plan.goals).as_dict(),
                "rounds": [report.as_dict() for report in outcome.rounds] if plan.rounds > 1 else [],
            }
            for outcome in findings.outcomes
        ],
        "ratios": {name: asdict(ratio) for name, ratio in compared.items()} if compared else None,
    }


def table(plan: Plan, findings: Findings) -> Table:
    """Return the table of one server, or of two side by side."""
    totals = [outcome.total(plan.goals) for outcome in findings.outcomes]
    if len(totals) == 1:
        outcome = findings.outcomes[0]
        return _single(f"{outcome.address}, {outcome.model}", totals[0])
    return _pair(plan, findings, totals)


def summary(plan: Plan, findings: Findings) -> Iterator[str]:
    """Yield the lines below the table."""
    marks = [""] if len(findings.outcomes) == 1 else ["A: ", "B: "]
    for mark, outcome in zip(marks, findings.outcomes, strict=True):
        yield from (f"{mark}{line}" for line in _summary(outcome.total(plan.goals)))


def _single(title: str, report: Report) -> Table:
    made = Table(title=title)
    made.add_column("ms", justify="left")
    for name in ("mean", "p50", "p90", "p95", "p99"):
        made.add_column(name, justify="right")
    for label, name in _TIMES.items():
        times: Distribution = getattr(report, name)
        made.add_row(label, *(f"{value:.1f}" for value in asdict(times).values()))
    return made


def _summary(report: Report) -> Iterator[str]:
    yield f"{report.completed} answers, {report.output_tokens} tokens in {report.seconds:.1f} s"
    rates = f"{report.tokens_per_second:.1f} output tokens/s, {report.total_tokens_per_second:.1f} with prompts"
    yield f"{report.requests_per_second:.2f} requests/s, {rates}"
    if report.tokens_per_chunk > 1:
        yield f"{report.tokens_per_chunk:.2f} tokens a chunk: ITL is the time from chunk to chunk"
    if report.goodput:
        met = f"{report.goodput.requests} of {report.completed} met every goal"
        yield f"goodput {report.goodput.requests_per_second:.2f} requests/s: {met}"
    yield from _speculation(report)


def _speculation(report: Report) -> Iterator[str]:
    told = report.acceptance
    if told is not None and told.rate is not None:
        length = f", {told.mean_length:.2f} tokens a step" if told.mean_length else ""
        source = "" if report.acceptance_source == "answers" else ", by the server's counters"
        yield f"acceptance {told.rate:.3f} of {told.draft_tokens} draft tokens{length}{source}"


def _pair(plan: Plan, findings: Findings, totals: Sequence[Report]) -> Table:
    first, second = findings.outcomes
    made = Table(title=f"A {first.address}, B {second.address}: {plan.rounds} rounds each")
    made.add_column("", justify="left")
    for name in ("A", "B", "B / A, median", "least to most"):
        made.add_column(name, justify="right")
    compared = _ratios(findings)
    for name, figure in FIGURES.items():
        values = [f"{figure(report):.2f}" for report in totals]
        made.add_row(_LABELS[name], *values, *_ratio_cells(compared.get(name)))
    return made


def _ratio_cells(ratio: Ratio | None) -> tuple[str, str]:
    return ("", "") if ratio is None else (f"{ratio.median:.3f}", f"{ratio.least:.3f} to {ratio.most:.3f}")


def _ratios(findings: Findings) -> dict[str, Ratio]:
    if len(findings.outcomes) != 2:
        return {}
    first, second = findings.outcomes
    return ratios(first.rounds, second.rounds)


def remarks(plan: Plan, findings: Findings) -> Iterator[str]:
    """Yield what limits the figures."""
    if not findings.exact_prompts:
        yield "the server has no /tokenize, or its tokens do not fit: prompts have about the length asked for"
    if findings.repeated_prompts:
        yield "prompts were sent more than once: a server that caches prefixes answers them sooner"
    for outcome in findings.outcomes:
        report = outcome.total(plan.goals)
        for kind, count in report.failures.items():
            yield f"{outcome.address}: {count} requests failed: {kind}"
        if report.longest_retry_after is not None:
            yield f"{outcome.address}: asked to wait for up to {report.longest_retry_after:g} s (Retry-After)"
        if report.completed and not report.counted:
            yield f"{outcome.address}: counts no tokens (usage): each chunk counts as one"
        if report.client.limited:
            held = f"it used {report.client.processor_share:.0%} of a processor, and its event loop woke "
            late = f"{report.client.loop_lag_p99 * 1e3:.0f} ms late"
            yield f"{outcome.address}: the load generator was held up ({held}{late}): the figures are not the server's alone"
