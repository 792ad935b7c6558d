"""Words for the contract's values on a screen. An enum's value from a newer server is called by its
number."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.v1 import generation_pb2, status_pb2, trace_pb2

PROPOSERS = {"draft": "draft", "ngram": "n-gram", "heads": "heads", "": "none"}
"""Words for the sources of proposals."""
OUTCOMES = {name: name for name in ("recovered", "bonus", "plain", "cancelled", "failed")}
"""Words for the ends of rounds."""


def outcome_of(number: trace_pb2.RoundOutcome.ValueType) -> str:
    """Return the word for a round's end, in lower case."""
    return _name(trace_pb2.RoundOutcome.items(), "ROUND_OUTCOME_", number)


def proposer_of(message: status_pb2.RoundCount | trace_pb2.RoundTrace) -> str:
    """Return the word for the source of the proposal; empty if there was none."""
    if not message.proposer:
        return ""
    return _name(generation_pb2.Speculation.Proposer.items(), "PROPOSER_", message.proposer)


def margin_of(message: trace_pb2.RoundTrace) -> str:
    """The least lead of a chosen token."""
    return f"{message.least_margin:.3g}" if message.HasField("least_margin") else "-"


def plural(count: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def milliseconds(length: float) -> str:
    """Return a time in seconds as text: 84 ms, 8.4 ms, 0.25 ms; from ten seconds on 12.3 s."""
    if length >= 10:
        return f"{length:.1f} s"
    value = length * 1e3
    return f"{value:.0f} ms" if value >= 9.95 else f"{value:.1f} ms" if value >= 0.95 else f"{value:.2f} ms"


def _name(known: Sequence[tuple[str, int]], prefix: str, number: int) -> str:
    names = {value: name for name, value in known}
    return names[number].removeprefix(prefix).lower() if number in names else str(number)
