"""Parts of a run, and the steps that chose their tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.peers.exchange import PeerTiming, sum_of, timing_of
from orchestrator.speculation.proposal import Source
from slipstream.rpc.sampling_wire import logprobs_of
from slipstream.rpc.wire import seconds
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.wire.v1 import hint_pb2, verifier_pb2

_SOURCES = {
    hint_pb2.HINT_SOURCE_DRAFT: Source.DRAFT,
    hint_pb2.HINT_SOURCE_BRANCH: Source.DRAFT,
    hint_pb2.HINT_SOURCE_NGRAM: Source.NGRAM,
    hint_pb2.HINT_SOURCE_PREDICTION: Source.PREDICTION,
    hint_pb2.HINT_SOURCE_OTHER: Source.OTHER,
    hint_pb2.HINT_SOURCE_HEADS: Source.HEADS,
}


class Step(NamedTuple):
    """A step that verified hint tokens, or a stretch of steps without any."""

    token_count: int
    """Tokens that it chose."""
    hint_count: int
    """Hint tokens that it verified."""
    accepted_count: int
    """Number of them that the target chose too."""
    source: Source | None
    """The kind of maker of the hint; None without one."""
    held: float
    """Seconds for which it waited for a hint."""
    timing: PeerTiming
    """The share of the part's times, without ``held``."""
    source_id: int = 0
    """Id of the hint's maker among those of its kind."""


class Part(NamedTuple):
    """Tokens that a run has chosen since the part before."""

    tokens: tuple[int, ...]
    timing: PeerTiming
    """Times since the part before."""
    prefilled_count: int
    logprobs: tuple[TokenLogprobs, ...]
    tail_logprobs: tuple[TokenLogprobs, ...]
    margin: float
    steps: tuple[Step, ...]
    """The steps that chose ``tokens``, in their order."""
    arrived: float
    """When it came, by the monotonic clock."""


def part_of(result: verifier_pb2.RunResult, last: float, now: float) -> Part:
    """Return the part of a checked result that came ``now``; the part before came at ``last``."""
    timing = timing_of(result.timing, now - last)
    return Part(
        tokens=tuple(result.tokens),
        timing=timing,
        prefilled_count=result.prefilled_count,
        logprobs=tuple(map(logprobs_of, result.logprobs)) if result.logprobs else (),
        tail_logprobs=tuple(map(logprobs_of, result.tail_logprobs)) if result.tail_logprobs else (),
        margin=result.margin,
        steps=_steps_of(result, timing),
        arrived=now,
    )


def merged(parts: Sequence[Part]) -> Part:
    """Return consecutive parts, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    return Part(
        tokens=tuple(token for part in parts for token in part.tokens),
        timing=sum_of([part.timing for part in parts]),
        prefilled_count=parts[0].prefilled_count,
        logprobs=tuple(entry for part in parts for entry in part.logprobs),
        tail_logprobs=parts[0].tail_logprobs,
        margin=min(part.margin for part in parts),
        steps=_joined([step for part in parts for step in part.steps]),
        arrived=parts[-1].arrived,
    )


def _joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return consecutive steps with each stretch without hints as one."""
    stretches: list[list[Step]] = []
    for step in steps:
        if stretches and not step.hint_count and not step.held and not stretches[-1][-1].hint_count:
            stretches[-1].append(step)
        else:
            stretches.append([step])
    return tuple([stretch[0] if len(stretch) == 1 else _stretch(stretch) for stretch in stretches])


def _stretch(steps: Sequence[Step]) -> Step:
    return steps[0]._replace(
        token_count=sum([step.token_count for step in steps]), timing=sum_of([step.timing for step in steps])
    )


def _steps_of(result: verifier_pb2.RunResult, timing: PeerTiming) -> tuple[Step, ...]:
    """Return a result's steps with the times of the result divided among them: by their forwards,
    or by their tokens if no forward took any time."""
    if len(result.steps) == 1 and not result.steps[0].hint_count and not result.steps[0].HasField("held"):
        count = len(result.tokens)
        return (Step(count, 0, 0, None, 0.0, timing if timing.forward_count == count else _share(timing, 1.0, count)),)
    weights = [seconds(step.forward) for step in result.steps]
    if sum(weights) <= 0:
        weights = [step.token_count for step in result.steps]
    held = [seconds(step.held) for step in result.steps]
    room = max(0.0, min(timing.total, timing.round_trip) - timing.forward)
    if sum(held) > room:  # clocks differ, and parts come in bursts: all times together stay the part's
        held = [room * waited / sum(held) for waited in held]
    left = timing._replace(
        queue=max(0.0, timing.queue - sum(held)),
        total=timing.total - sum(held),
        round_trip=timing.round_trip - sum(held),
    )
    return tuple(
        Step(
            step.token_count,
            step.hint_count,
            step.accepted_count,
            _SOURCES[step.source] if step.hint_count else None,
            waited,
            _share(left, weight / sum(weights), 1 if step.hint_count else step.token_count),
            step.source_id,
        )
        for step, waited, weight in zip(result.steps, held, weights, strict=True)
    )


def _share(timing: PeerTiming, share: float, forward_count: int) -> PeerTiming:
    return PeerTiming(
        queue=timing.queue * share,
        forward=timing.forward * share,
        total=timing.total * share,
        round_trip=timing.round_trip * share,
        forward_count=forward_count,
        step_token_count=timing.step_token_count,
        prefill=timing.prefill * share,
    )
