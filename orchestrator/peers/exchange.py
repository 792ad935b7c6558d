"""One exchange with a model service: its terms, its times, its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.agreed import WIRE_VERSION
from slipstream.rpc.wire import duration, seconds
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.wire.v1 import model_pb2


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms under which a handle is opened. The peer compares the tokenizer's fingerprint with
    its own, and the weights' fingerprint unless it is empty. The lease is in seconds."""

    tokenizer: str
    weights: str
    lease_seconds: float

    def message(self) -> model_pb2.OpenSequence:
        """Return the terms as a wire message."""
        return model_pb2.OpenSequence(
            tokenizer_fingerprint=self.tokenizer,
            weights_fingerprint=self.weights,
            lease=duration(self.lease_seconds),
            wire_version=WIRE_VERSION,
        )


class PeerTiming(NamedTuple):
    """Seconds of one exchange. Queue, forward and total are by the peer's clock, the round trip by
    ours."""

    queue: float
    forward: float
    total: float
    round_trip: float
    forward_count: int = 1
    step_token_count: int = 0
    prefill: float = 0.0
    """Seconds of the total that went to prompts, including those of other sequences."""

    @property
    def network(self) -> float:
        """Return the seconds that the peer's own clock does not account for."""
        return max(0.0, self.round_trip - self.total)


def sum_of(timings: Sequence[PeerTiming]) -> PeerTiming:
    """Return the times of consecutive exchanges, at least one, together."""
    if len(timings) == 1:
        return timings[0]
    return PeerTiming(
        queue=sum(timing.queue for timing in timings),
        forward=sum(timing.forward for timing in timings),
        total=sum(timing.total for timing in timings),
        round_trip=sum(timing.round_trip for timing in timings),
        forward_count=sum(timing.forward_count for timing in timings),
        step_token_count=timings[-1].step_token_count,
        prefill=sum(timing.prefill for timing in timings),
    )


class Work(NamedTuple):
    """Work of a draft on hints. Moments are of the monotonic clock, in seconds."""

    address: str
    began: float
    ended: float
    token_count: int
    """Tokens of the hints."""
    timing: PeerTiming | None
    """Times of the work; None if it failed."""
    error: Exception | None = None
    span_id: int = 0
    """Id of the span that the draft's own spans belong to; 0 for a span that has none below it."""

    def then(self, later: Work) -> Work:
        """Return this and later work as one. Neither has failed."""
        assert self.timing is not None and later.timing is not None, "neither has failed"
        return self._replace(
            ended=later.ended,
            token_count=self.token_count + later.token_count,
            timing=sum_of([self.timing, later.timing]),
        )


class Verification(NamedTuple):
    """The verifier's answer to one round."""

    accepted_count: int
    next_token: int
    prefilled_count: int
    timing: PeerTiming
    logprobs: tuple[TokenLogprobs, ...]
    tail_logprobs: tuple[TokenLogprobs, ...]
    margin: float = math.inf
    """Smallest lead of a chosen token over the next best, in perturbed logits."""


def timing_of(message: model_pb2.ItemTiming, round_trip: float) -> PeerTiming:
    """Return the checked timing that a service reports for an item that took ``round_trip`` seconds
    here."""
    return PeerTiming(
        seconds(message.queue),
        seconds(message.forward),
        seconds(message.total),
        round_trip,
        message.forward_count,
        message.step_token_count,
        seconds(message.prefill),
    )
