"""Conversion of a turn's recorded rounds into trace messages."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from orchestrator.rounds.note import ExchangeNote, RoundNote
from orchestrator.watching.ring import TurnNote
from slipstream.rpc.wire import duration
from slipstream.v1 import generation_pb2, trace_pb2

_KINDS = {"propose": trace_pb2.ExchangeTrace.KIND_PROPOSE, "verify": trace_pb2.ExchangeTrace.KIND_VERIFY}
PROPOSERS = {
    "draft": generation_pb2.Speculation.PROPOSER_DRAFT,
    "ngram": generation_pb2.Speculation.PROPOSER_NGRAM,
    "heads": generation_pb2.Speculation.PROPOSER_HEADS,
    "prediction": generation_pb2.Speculation.PROPOSER_PREDICTION,
    "other": generation_pb2.Speculation.PROPOSER_OTHER,
    "plain": generation_pb2.Speculation.PROPOSER_UNSPECIFIED,
}
"""Proposers by the rung of the ladder."""


_MOST_ROUNDS = 2_000
"""Most rounds in one message. A round takes 500 bytes, and more where a verifier was lost and
found again."""


def turn_trace_message(turn: TurnNote) -> trace_pb2.TurnTrace:
    """Convert a turn, with the rounds that are recorded of it."""
    total = time.monotonic() - turn.began if turn.total is None else turn.total
    message = trace_pb2.TurnTrace(
        turn=turn.turn,
        total=duration(total),
        running=turn.total is None,
        trace_id=turn.trace_id,
        round_count=turn.rounds.count,
        rounds=[_round(note, turn.began) for note in turn.shown],
    )
    message.start_time.FromNanoseconds(int(turn.started * 1e9))
    return message


def fitting_turns(turns: Sequence[TurnNote]) -> list[TurnNote]:
    """Return the last turns, as many as fit into a message, and at least one."""
    kept: list[TurnNote] = []
    room = _MOST_ROUNDS
    for turn in reversed(turns):
        room -= len(turn.shown)
        if kept and room < 0:
            break
        kept.append(turn)
    return kept[::-1]


def outcome_value(name: str) -> trace_pb2.RoundOutcome.ValueType:
    """Return the enum value of a round's outcome."""
    return trace_pb2.RoundOutcome.Value(f"ROUND_OUTCOME_{name.upper()}")


def _round(note: RoundNote, began: float) -> trace_pb2.RoundTrace:
    message = trace_pb2.RoundTrace(
        number=note.number,
        start=duration(note.began - began),
        total=duration(note.seconds),
        outcome=outcome_value(note.outcome),
        base_length=note.base_length,
        proposer=PROPOSERS.get(note.rung, PROPOSERS["plain"]),
        draft_token_count=note.drafted,
        accepted_token_count=note.accepted,
        committed_token_count=note.committed,
        waited=duration(note.waited),
        least_margin=note.margin if math.isfinite(note.margin) else None,
        verifier_idle=duration(note.verifier_idle),
        exchanges=[
            _exchange(exchange, began)
            for exchange in (*note.proposes, *([note.verify] if note.verify is not None else ()))
        ],
    )
    if note.ending is not None and not note.ending.is_cancelled:
        message.error_reason = note.ending.kind
    return message


def _exchange(exchange: ExchangeNote, began: float) -> trace_pb2.ExchangeTrace:
    message = trace_pb2.ExchangeTrace(
        kind=_KINDS[exchange.name],
        address=exchange.address,
        start=duration(exchange.began - began),
        total=None if exchange.ended is None else duration(exchange.ended - exchange.began),
        left=exchange.left,
        error_reason="" if exchange.ending is None else exchange.ending.kind,
        setbacks=[reason for _, reason in exchange.setbacks],
    )
    timing = exchange.timing
    if timing is not None:
        message.queue.CopyFrom(duration(timing.queue))
        message.forward.CopyFrom(duration(timing.forward))
        message.prefill.CopyFrom(duration(timing.prefill))
        message.network.CopyFrom(duration(exchange.network))
        message.step_token_count = timing.step_token_count
    return message
