"""A turn's rounds in sentences: what they came to, which was the slowest and why, what went wrong.
Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC

from slipstream.cli.timeline import Kind, own_parts_of, proposals_of, span_of, verification_of
from slipstream.cli.words import milliseconds, outcome_of, plural
from slipstream.rpc.wire import seconds
from slipstream.v1 import trace_pb2

_TIE = 1e-4
"""Seconds by which moments may differ that are meant to be the same."""


def headline(session_id: str, turn: trace_pb2.TurnTrace) -> str:
    """Session, turn, time, rounds, tokens and acceptance in one line."""
    rounds = turn.rounds
    drafted = sum(trace.draft_token_count for trace in rounds)
    accepted = sum(trace.accepted_token_count for trace in rounds)
    tokens = sum(trace.committed_token_count for trace in rounds)
    lasted = f"{'running for' if turn.running else 'took'} {milliseconds(seconds(turn.total))}"
    begun = turn.start_time.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    line = f"session {session_id} turn {turn.turn}, begun {begun}, {lasted}: {plural(turn.round_count, 'round')}"
    if turn.round_count > len(rounds):
        line += f", in the {len(rounds)} shown"
    line += f", {plural(tokens, 'token')}"
    return f"{line}, acceptance {accepted / drafted:.0%} ({accepted} of {drafted})" if drafted else f"{line}, no draft"


def left_out_of(turn: trace_pb2.TurnTrace) -> str:
    """Say how many rounds are not shown, and which; empty if all are shown."""
    missing = turn.round_count - len(turn.rounds)
    if missing <= 0:
        return ""
    return (
        f"{missing} of {turn.round_count} rounds are left out; kept are those that failed, the slowest, and those in which the "
        "least was accepted"
    )


def remarks_of(traces: Sequence[trace_pb2.RoundTrace]) -> list[str]:
    """The slowest round and why, in a sentence; another one for the slowest after the first, which
    reads the prompt; and one for each that failed."""
    if not traces:
        return []
    usual = statistics.median(seconds(trace.total) for trace in traces)
    return [remark_of(trace, usual) for trace in told_of(traces)]


def told_of(traces: Sequence[trace_pb2.RoundTrace]) -> list[trace_pb2.RoundTrace]:
    """Return the rounds that have a remark, each once."""
    if not traces:
        return []
    slowest = max(traces, key=lambda trace: seconds(trace.total))
    told = [slowest]
    later = [trace for trace in traces if trace.number > 1]
    if slowest.number == 1 and later:
        told.append(max(later, key=lambda trace: seconds(trace.total)))
    told += [trace for trace in traces if is_bad(trace)]
    return list({trace.number: trace for trace in told}.values())


def remark_of(trace: trace_pb2.RoundTrace, usual: float | None = None) -> str:
    """``round 17 took 84 ms, 7 times the usual: 61 ms of it waiting in the verifier's queue``.
    ``usual`` is in seconds."""
    total = seconds(trace.total)
    sentence = f"round {trace.number} {_ending(trace)} {milliseconds(total)}"
    if usual and total >= 2 * usual:
        sentence += f", {total / usual:.0f} times the usual"
    lengths: dict[Kind, float] = {}
    for part in own_parts_of(trace):
        lengths[part.kind] = lengths.get(part.kind, 0.0) + part.length
    if lengths:
        kind = max(lengths, key=lambda kind: lengths[kind])
        sentence += f": {milliseconds(lengths[kind])} of it {_reason(kind, trace)}"
    return f"{sentence} ({trace.error_reason})" if trace.error_reason else sentence


def _ending(trace: trace_pb2.RoundTrace) -> str:
    if trace.outcome == trace_pb2.ROUND_OUTCOME_FAILED:
        return "failed after"
    return "was cancelled after" if trace.outcome == trace_pb2.ROUND_OUTCOME_CANCELLED else "took"


def _reason(kind: Kind, trace: trace_pb2.RoundTrace) -> str:
    verification = verification_of(trace)
    if kind is Kind.PROPOSE:
        return f"waiting for the draft{_inside_draft(trace)}"
    if kind is Kind.IDLE or verification is None:
        return "in the orchestrator, before the verifier was asked"
    if kind is Kind.NETWORK:
        return f"on the way to the verifier {verification.address} and back"
    if kind is Kind.UNANSWERED:
        again = counted(verification.setbacks)
        return f"without an answer of the verifier's{f', which was asked again: {again}' if again else ''}"
    if kind is Kind.REST:
        return "in neither a queue nor a forward of the verifier's"
    on_prompts = seconds(verification.prefill)
    in_queue = min(on_prompts, seconds(verification.queue))
    if kind is Kind.QUEUE:
        return f"waiting in the verifier's queue{_for_prompts(in_queue)}"
    rows = verification.step_token_count
    return f"in the verifier's forward{f' of {rows} rows' if rows else ''}{_for_prompts(on_prompts - in_queue)}"


def _for_prompts(length: float) -> str:
    return f", {milliseconds(length)} for prompts" if length >= 0.0005 else ""


def _inside_draft(trace: trace_pb2.RoundTrace) -> str:
    """Say what the longest request to the draft was about, if the round waited for it and made it
    itself."""
    verification = verification_of(trace)
    sent = span_of(trace)[1] if verification is None else seconds(verification.start)
    asked = [exchange for exchange in proposals_of(trace) if exchange.HasField("total")]
    asked = [exchange for exchange in asked if span_of(exchange)[1] <= sent + _TIE]
    if not asked:
        return ""
    longest = max(asked, key=lambda exchange: seconds(exchange.total))
    if longest.error_reason:
        return f", which failed: {longest.error_reason}"
    shares = {
        "in its queue": seconds(longest.queue),
        "in its forwards": seconds(longest.forward),
        "on the way there and back": seconds(longest.network),
    }
    name = max(shares, key=lambda name: shares[name])
    return f", {milliseconds(shares[name])} {name}" if shares[name] else ""


def notes_of(trace: trace_pb2.RoundTrace) -> list[str]:
    """Return what went wrong in a round, in itself and with the peers."""
    notes = []
    if is_bad(trace):
        notes.append(f"{outcome_of(trace.outcome)}{f': {trace.error_reason}' if trace.error_reason else ''}")
    for exchange in trace.exchanges:
        who = "verifier" if exchange.kind == trace_pb2.ExchangeTrace.KIND_VERIFY else "draft"
        if exchange.setbacks:
            notes.append(f"{who} {exchange.address} asked again: {counted(exchange.setbacks)}")
        if exchange.error_reason and exchange.error_reason != trace.error_reason:
            notes.append(f"{who} {exchange.address}: {exchange.error_reason}")
    return notes


def counted(reasons: Iterable[str]) -> str:
    """``STREAM_LOST 7 times, UNKNOWN_HANDLE``."""
    counts = Counter(reasons)
    return ", ".join(f"{reason} {count} times" if count > 1 else reason for reason, count in counts.items())


def is_bad(trace: trace_pb2.RoundTrace) -> bool:
    """True if the round brought nothing."""
    return trace.outcome in (trace_pb2.ROUND_OUTCOME_FAILED, trace_pb2.ROUND_OUTCOME_CANCELLED)
