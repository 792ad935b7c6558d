"""A plan as tables and as JSON's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from slipstream.planning.advice import summary_of, warnings_of, what_fits
from slipstream.planning.assumptions import assumptions_of
from slipstream.planning.formats import FORMATS
from slipstream.planning.placing import Placement
from slipstream.planning.plan import Chosen, Plan
from slipstream.planning.speed import Speed
from slipstream.planning.steps import PlannedModel

_COMPARED = ("bfloat16", "fp8", "int4", "q8_0", "q4_k_m")


def tables(plan: Plan) -> list[Table]:
    """Return the plan's tables: models, places and rates."""
    return [_models(plan), _places(plan), *(_rates(plan, way) for way in plan.ways)]


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return the whole plan as JSON's types. Times are in seconds, memory in bytes."""
    question = plan.question
    pair = question.pair
    return {
        "target": _model_dict(pair.target),
        "draft": _model_dict(pair.draft),
        "gpus": [{"name": group.device.name, "count": group.count} for group in question.groups],
        "sessions": question.session_count,
        "context": pair.context,
        "fits": bool(plan.ways),
        "placements": [_place_dict(plan, each) for each in plan.placements],
        "ways": [_way_dict(plan, way) for way in plan.ways],
        "would_fit": [] if plan.ways else what_fits(question),
        "summary": summary_of(plan),
        "warnings": warnings_of(plan),
        "assumptions": assumptions_of(plan),
    }


def gigabytes(count: float) -> str:
    """Return bytes as GB of 10^9: 141 GB, 16.1 GB, 0.27 GB."""
    value = count / 1e9
    return f"{value:.0f} GB" if abs(value) >= 99.5 else f"{value:.1f} GB" if abs(value) >= 9.95 else f"{value:.2f} GB"


def _models(plan: Plan) -> Table:
    models = plan.question.pair.target, plan.question.pair.draft
    table = Table(title="models, GB of 10^9 bytes")
    table.add_column("")
    for role, model in zip(("target", "draft"), models, strict=True):
        table.add_column(f"{role}\n{model.shape.name}", justify="right", overflow="fold")
    table.add_row("parameters", *(f"{model.shape.weights.total / 1e9:.2f} billion" for model in models))
    table.add_row("weights", *(f"{gigabytes(model.weight_bytes)} in {model.format.name}" for model in models))
    sizes = [_formats(model) for model in models]
    for name in _COMPARED:
        if any(size.get(name) for size in sizes):
            table.add_row(
                f"  in {name}", *(gigabytes(size[name]) if name in size else "" for size in sizes), style="dim"
            )
    table.add_row("KV of a token", *(f"{model.kv_bytes_per_token / 1024:.0f} KiB" for model in models))
    session = [gigabytes(plan.question.pair.session_bytes(model)) for model in models]
    table.add_row(f"KV of {plan.question.pair.context} tokens", *session)
    return table


def _formats(model: PlannedModel) -> dict[str, float]:
    """Return the bytes of the weights in other formats; none for a file with its own bits."""
    if model.shape.file_bytes is not None:
        return {}
    return {name: FORMATS[name].weight_bytes(model.shape.weights) for name in _COMPARED}


def _places(plan: Plan) -> Table:
    question = plan.question
    table = Table(title=f"places, and sessions of {question.pair.context} tokens that fit")
    for column in ("target + draft", "weights a rank", "room for KV", "sessions", "steps"):
        is_name = column == "target + draft"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    for place in plan.placements:
        target, draft = _step_seconds(plan, place)
        table.add_row(
            str(place),
            gigabytes(place.target.model.rank_bytes(place.target.rank_count)),
            gigabytes(place.target_room) if place.target_room > 0 else "none",
            str(place.session_count),
            f"{target * 1e3:.1f} + {draft * 1e3:.1f} ms",
            style="bold" if place in [way.placement for way in plan.ways] else "",
        )
    return table


def _step_seconds(plan: Plan, place: Placement) -> tuple[float, float]:
    """Return the seconds of a target's and a draft's step with one row a session."""
    pair, count = plan.question.pair, plan.question.session_count
    target = place.target.step_seconds(count, count, pair.context, pair.assumed) + pair.assumed.host_seconds
    draft = place.draft.step_seconds(count, count, pair.context, pair.assumed) + pair.assumed.draft_host_seconds
    return target, draft


def _rates(plan: Plan, way: Chosen) -> Table:
    count = plan.question.session_count
    of = "one session" if count == 1 else f"{count} sessions together"
    table = Table(title=f"{way.placement}: tokens/s of {of}, simulated")
    for column in ("acceptance", "plain"):
        table.add_column(column, justify="right")
    for trip in _trips(way):
        table.add_column("shared" if way.placement.is_shared else f"draft {trip * 1e3:g} ms away", justify="right")
    for acceptance in plan.question.acceptances:
        row = [way.at(acceptance, trip) for trip in _trips(way)]
        table.add_row(f"{acceptance:g}", f"{row[0].plain:.0f}" if row[0] else "", *map(_cell, row))
    return table


def _trips(way: Chosen) -> Sequence[float]:
    return list(dict.fromkeys(speed.round_trip for speed in way.speeds))


def _cell(speed: Speed | None) -> str:
    return f"{speed.hinted:.0f} ({speed.gain:.2f}x)" if speed else ""


def _model_dict(model: PlannedModel) -> dict[str, Any]:
    return {
        "name": model.shape.name,
        "source": model.shape.source,
        "model_type": model.shape.family,
        "parameters": model.shape.weights.total,
        "dtype": model.format.name,
        "weight_bytes": round(model.weight_bytes),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "weight_bytes_by_dtype": {name: round(size) for name, size in _formats(model).items()},
    }


def _place_dict(plan: Plan, place: Placement) -> dict[str, Any]:
    target, draft = _step_seconds(plan, place)
    return {
        "target_gpu": place.target.device.name,
        "ranks": place.target.rank_count,
        "draft_gpu": place.draft.device.name,
        "is_shared": place.is_shared,
        "weight_bytes_per_rank": round(place.target.model.rank_bytes(place.target.rank_count)),
        "kv_bytes_per_rank": max(0, round(place.target_room)),
        "sessions": place.session_count,
        "target_step_seconds": target,
        "draft_step_seconds": draft,
    }


def _way_dict(plan: Plan, way: Chosen) -> dict[str, Any]:
    return {
        "placement": _place_dict(plan, way.placement),
        "speeds": [
            {
                "acceptance": speed.acceptance,
                "round_trip_seconds": speed.round_trip,
                "plain_tokens_per_second": speed.plain,
                "tokens_per_second": speed.hinted,
            }
            for speed in way.speeds
        ],
    }
