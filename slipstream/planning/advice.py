"""Warnings of a plan, and what would fit where nothing does. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from slipstream.planning.devices import MOST_DEVICES, Group
from slipstream.planning.formats import FORMATS, GGUF_FORMATS, STOCK_FORMATS
from slipstream.planning.placing import PAGE, Pair, placements
from slipstream.planning.plan import Chosen, Plan, Question
from slipstream.planning.steps import PlannedModel

LEAST_GAIN = 1.05
"""Times as fast as plain decoding, below which speculation does not pay for its devices."""

_USUAL_ACCEPTANCE = 0.8

_LARGE_DRAFT = 0.35
"""Share of the target's step from which a draft's step is called long."""
_HINTED_ROWS = 5
"""Rows of a session whose step verifies four hint tokens."""
_DEAR_ROWS = 1.3
"""Times a plain step that a step with these rows takes, from which on they are called dear."""


def warnings_of(plan: Plan) -> list[str]:
    """Return a line for each thing that keeps speculation from paying, or that a reader should
    check."""
    question = plan.question
    lines = [*_pair_lines(question.pair)]
    for way in plan.ways:
        lines += _way_lines(question, way)
    lines += _plain_lines(plan)
    if plan.ways and not any(speed.gain >= LEAST_GAIN for way in plan.ways for speed in way.speeds):
        lines.insert(0, "speculation cannot pay here: no way of the table is 1.05 times as fast as plain decoding")
    if plan.apart is None and plan.shared is not None:
        lines.append("the draft has no device of its own that holds the sessions, so it takes turns with the target")
    return list(dict.fromkeys(lines))


def summary_of(plan: Plan) -> str:
    """Return one line: the fastest way at the acceptance that is nearest to 0.8, and the fastest
    without a draft. Empty if nothing fits."""
    rates = [(speed.hinted, way, speed) for way in plan.ways for speed in way.speeds]
    if not rates:
        return ""
    usual = min((speed.acceptance for _, _, speed in rates), key=lambda acceptance: abs(acceptance - _USUAL_ACCEPTANCE))
    rate, way, speed = max((each for each in rates if each[2].acceptance == usual), key=lambda each: each[0])
    plain, bare = max(((speed.plain, way) for _, way, speed in rates), key=lambda each: each[0])
    trip = "" if way.placement.is_shared else f" with the draft {speed.round_trip * 1e3:g} ms away"
    return (
        f"At acceptance {usual:g} the fastest is {way.placement}{trip}: {rate:.0f} tokens/s. Without a draft "
        f"{bare.placement.target.rank_count} x {bare.placement.target.device.name} make {plain:.0f}."
    )


def _pair_lines(pair: Pair) -> Iterator[str]:
    target, draft = pair.target.shape, pair.draft.shape
    if target.vocabulary_size != draft.vocabulary_size:
        yield (
            f"the vocabularies differ ({target.vocabulary_size} and {draft.vocabulary_size}): unless only padding does, "
            "the draft service translates its hints by their text"
        )
    if pair.draft.weight_bytes >= pair.target.weight_bytes:
        yield "the draft has no fewer bytes than the target"


def _way_lines(question: Question, way: Chosen) -> Iterator[str]:
    pair, place, count = question.pair, way.placement, question.session_count
    if place.target.rank_count > 1 and not pair.target.shape.is_divided:
        yield f"{place}: only a stock engine divides a {pair.target.shape.family} among ranks"
    yield from _bits_lines(way)
    target, draft = [
        site.step_seconds(count, count, pair.context, pair.assumed) for site in (place.target, place.draft)
    ]
    if draft >= _LARGE_DRAFT * target:
        yield (
            f"{place}: a step of the draft takes {draft / target:.2f} of the target's; take a smaller draft, or "
            "quantise it"
        )
    hinted = place.target.step_seconds(_HINTED_ROWS * count, count, pair.context, pair.assumed)
    if hinted >= _DEAR_ROWS * target:
        is_bound = place.target.is_compute_bound(_HINTED_ROWS * count, count, pair.context, pair.assumed)
        reason = "its processor bounds the target" if is_bound else "each row reads further experts"
        yield f"{place}: {_HINTED_ROWS} rows a session cost {hinted / target:.1f} plain steps, because {reason}"
    poor = {
        speed.round_trip: speed.acceptance for speed in way.speeds if speed.gain < LEAST_GAIN
    }  # the speeds rise with the acceptance, so the greatest stays
    if poor:
        at = "" if place.is_shared else " at {:g} ms"
        lines = [f"up to acceptance {most:g}{at.format(trip * 1e3)}" for trip, most in poor.items()]
        yield f"{place}: hints do not pay {', '.join(lines)}"


def _bits_lines(way: Chosen) -> Iterator[str]:
    """Yield a line for each model whose bits Slipstream's own engines do not compute there."""
    place = way.placement
    for role, site in (("target", place.target), ("draft", place.draft)):
        name = site.model.format.name
        if name in GGUF_FORMATS and not site.device.is_cpu:
            yield f"{place}: Slipstream serves GGUF files on CPUs only, and the {role} is one ({name})"
        elif name in STOCK_FORMATS and role == "target":
            yield (
                f"only a stock engine computes a target in {name}; for Slipstream's own engines `slipstream dequantise` "
                "makes it bfloat16, so plan with --target-dtype bfloat16"
            )


def _plain_lines(plan: Plan) -> Iterator[str]:
    """Yield a line if more ranks without a draft are faster than a draft on a device of its own."""
    if plan.apart is None or plan.shared is None:
        return
    plain, ranks = max(speed.plain for speed in plan.shared.speeds), plan.shared.placement.target.rank_count
    beaten = [speed.acceptance for speed in plan.apart.speeds if speed.hinted < plain]
    if beaten:
        yield (
            f"{plan.apart.placement}: up to acceptance {max(beaten):g} it is slower than {plain:.0f} tokens/s, which "
            f"{ranks} x {plan.shared.placement.target.device.name} make without a draft"
        )


def what_fits(question: Question) -> list[str]:
    """Return what would fit where no place holds the sessions, one line for each change."""
    return [line for line in (_fewer(question), _shorter(question), _smaller(question), _more(question)) if line]


def _holds(question: Question) -> bool:
    return any(each.session_count >= question.session_count for each in placements(question.pair, question.groups))


def _fewer(question: Question) -> str:
    most = max((each.session_count for each in placements(question.pair, question.groups)), default=0)
    return f"--sessions {most}" if most else ""


def _shorter(question: Question) -> str:
    """Return the longest context that fits, in whole pages."""

    def is_too_long(page_count: int) -> bool:
        return not _holds(replace(question, pair=replace(question.pair, context=page_count * PAGE)))

    pages = bisect_left(range(1, question.pair.context // PAGE + 1), True, key=is_too_long)
    return f"--context {pages * PAGE}" if pages else ""


def _smaller(question: Question) -> str:
    pair = question.pair
    for name in ("fp8", "int4"):
        changed = [_in_format(model, name) for model in (pair.target, pair.draft)]
        if _holds(replace(question, pair=replace(pair, target=changed[0]))):
            return f"--target-dtype {name}"
        if _holds(replace(question, pair=replace(pair, target=changed[0], draft=changed[1]))):
            return f"--target-dtype {name} --draft-dtype {name}"
    return ""


def _in_format(model: PlannedModel, name: str) -> PlannedModel:
    """Return the model in a format, unless it is smaller already or has its own bits."""
    changed = replace(model, format=FORMATS[name])
    return model if model.shape.file_bytes is not None or changed.weight_bytes >= model.weight_bytes else changed


def _more(question: Question) -> str:
    """Return the smallest number of devices of the first kind that holds the sessions."""
    first, *others = question.groups
    if first.device.is_cpu:
        return ""
    count = first.count
    while count < min(64, MOST_DEVICES):
        count += 1
        groups = [Group(first.device, count), *others]
        if _holds(replace(question, groups=groups)):
            return f"--gpus {','.join(f'{group.count}x{group.device.name}' for group in groups)}"
    return ""
