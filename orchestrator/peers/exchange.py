"""One exchange with a model service: its terms, its times, its result."""

from __future__ import annotations

import math
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
