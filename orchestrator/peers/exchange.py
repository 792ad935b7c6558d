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
    """On what a handle is opened: the fingerprints of the tokenizer and, unless empty, of the
    weights that its tokens come from, which the peer compares with its own; and the lease in
    seconds."""

    tokenizer: str
    weights: str
    lease_seconds: float

    def message(self) -> model_pb2.OpenSequence:
        """For the wire."""
        return model_pb2.OpenSequence(
            tokenizer_fingerprint=self.tokenizer,
            weights_fingerprint=self.weights,
            lease=duration(self.lease_seconds),
            wire_version=WIRE_VERSION,
        )


class PeerTiming(NamedTuple):
    """Seconds of one exchange: the peer's own clock for queue, forward and total, ours for the
    round trip."""

    queue: float
    forward: float
    total: float
    round_trip: float
    forward_count: int = 1
    step_token_count: int = 0
    prefill: float = 0.0
    """Part of the total that went to prompts, other sequences' included, in seconds."""

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
    """The least lead of a chosen token over the next best, in perturbed logits."""


def timing_of(message: model_pb2.ItemTiming, round_trip: float) -> PeerTiming:
    """The service's own account, which has been checked, of an item that took ``round_trip``
    seconds here."""
    return PeerTiming(
        seconds(message.queue),
        seconds(message.forward),
        seconds(message.total),
        round_trip,
        message.forward_count,
        message.step_token_count,
        seconds(message.prefill),
    )
