"""Parts of a turn's time: each of its rounds in parts that follow one another. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from slipstream.rpc.wire import seconds
from slipstream.v1 import trace_pb2

_SHORTEST = 1e-9
"""Seconds; what is less than the messages can say is an error of arithmetic."""

_LONGEST_TO_USUAL = 8


class Kind(Enum):
    """Kind of a part of a round."""

    PROPOSE = "draft"
    """Waiting for the proposal."""
    QUEUE = "queue"
    """In the verifier, before its first forward."""
    FORWARD = "forward"
    """The verifier's forwards."""
    NETWORK = "network"
    """To the verifier and back."""
    IDLE = "idle"
    """The session gave the verifier nothing to do, and not because of the draft."""
    UNANSWERED = "unanswered"
    """A verification that had to be asked for again, or was not answered at all."""
    REST = "rest"
    """Time that no service accounts for."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a round, in seconds from the turn's beginning."""

    kind: Kind
    start: float
    end: float

    @property
    def length(self) -> float:
        """In seconds."""
        return self.end - self.start


def verification_of(trace: trace_pb2.RoundTrace) -> trace_pb2.ExchangeTrace | None:
    """Return a round's request to the verifier, if it came so far."""
    asked = [exchange for exchange in trace.exchanges if exchange.kind == trace_pb2.ExchangeTrace.KIND_VERIFY]
    return asked[-1] if asked else None


def proposals_of(trace: trace_pb2.RoundTrace) -> list[trace_pb2.ExchangeTrace]:
    """Return a round's requests to the draft, for itself and ahead."""
    return [exchange for exchange in trace.exchanges if exchange.kind == trace_pb2.ExchangeTrace.KIND_PROPOSE]


def span_of(message: trace_pb2.RoundTrace | trace_pb2.ExchangeTrace) -> tuple[float, float]:
    """From when to when, in seconds from the turn's beginning."""
    start = seconds(message.start)
    return start, start + seconds(message.total)


def parts_of(trace: trace_pb2.RoundTrace) -> list[Part]:
    """A round from its beginning to its end, and before that what the verifier had been idle for
    it."""
    start, end = span_of(trace)
    verification = verification_of(trace)
    sent = end if verification is None else seconds(verification.start)
    waited = min(sent, start + seconds(trace.waited))
    if verification is None and proposals_of(trace):
        waited = end  # it was waiting when it ended
    idle = seconds(trace.verifier_idle) - (0.0 if verification is None else seconds(verification.network))
    lengths = [(Kind.PROPOSE, waited - start), (Kind.IDLE, sent - waited)]
    if verification is not None:
        lengths += _inside(verification, end - sent)
    begun = max(0.0, min(start, sent - idle))
    return _laid([(Kind.IDLE, start - begun), *lengths], begun, end)


def own_parts_of(trace: trace_pb2.RoundTrace) -> list[Part]:
    """Without what lies before its beginning."""
    start, _ = span_of(trace)
    return [part for part in parts_of(trace) if part.end > start + _SHORTEST]


def _inside(verification: trace_pb2.ExchangeTrace, room: float) -> list[tuple[Kind, float]]:
    """A verification's parts; the way there and the way back are taken to be as long."""
    if not verification.HasField("total") or not verification.HasField("forward"):
        return [(Kind.UNANSWERED, room)]
    queue, forward = seconds(verification.queue), seconds(verification.forward)
    way = seconds(verification.network) / 2
    left = max(0.0, room - queue - forward - 2 * way)
    lost, rest = (left, 0.0) if verification.setbacks else (0.0, left)
    return [
        (Kind.UNANSWERED, lost),
        (Kind.NETWORK, way),
        (Kind.QUEUE, queue),
        (Kind.FORWARD, forward),
        (Kind.REST, rest),
        (Kind.NETWORK, way),
    ]


def _laid(lengths: Sequence[tuple[Kind, float]], start: float, end: float) -> list[Part]:
    """One after another; the peer's clock may have counted more than ours, which has the last
    word."""
    parts = []
    for kind, length in lengths:
        stop = min(end, start + length)
        if stop - start > _SHORTEST:
            parts.append(Part(kind, start, stop))
            start = stop
    return parts


def scale_of(traces: Sequence[trace_pb2.RoundTrace]) -> float:
    """Seconds for which rounds are drawn beside one another: the slowest's, but not so many that
    all others vanish."""
    lengths = sorted(seconds(trace.total) for trace in traces)
    return max(_SHORTEST, min(lengths[-1], _LONGEST_TO_USUAL * lengths[len(lengths) // 2]))


def sums_of(traces: Sequence[trace_pb2.RoundTrace]) -> dict[Kind, float]:
    """Seconds by kind of part."""
    sums = dict.fromkeys(Kind, 0.0)
    for trace in traces:
        for part in parts_of(trace):
            sums[part.kind] += part.length
    return sums
