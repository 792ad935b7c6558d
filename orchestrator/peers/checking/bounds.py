"""The comparisons that all checks consist of. Each raises PeerFaultError with the field's name and
what would be right."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from google.protobuf.duration_pb2 import Duration

from orchestrator.peers.checking.faults import PeerFaultError
from slipstream.rpc.wire import seconds

_NANOS = 1_000_000_000


def check_within(field: str, value: float, low: float, high: float) -> None:
    """Check that a number is from ``low`` to ``high``; NaN never is."""
    if not low <= value <= high:
        raise PeerFaultError(field, f"must be from {low:g} to {high:g}, but is {value:g}")


def check_count(field: str, entries: Collection[object], most: int, least: int = 0) -> None:
    """Check that a list has from ``least`` to ``most`` entries."""
    if not least <= len(entries) <= most:
        raise PeerFaultError(field, f"must have from {least} to {most} entries, but has {len(entries)}")


def check_tokens(field: str, tokens: Sequence[int], vocabulary_size: int) -> None:
    """Check that token ids belong to the vocabulary."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary_size):
        raise PeerFaultError(field, f"must be token ids from 0 to {vocabulary_size - 1}")


def check_all_within(field: str, values: Sequence[float], low: float, high: float) -> None:
    """Check that all numbers are from ``low`` to ``high``; NaN never is."""
    if not all(low <= value <= high for value in values):
        raise PeerFaultError(field, f"must be numbers from {low:g} to {high:g}")


def check_text(field: str, text: str, most: int, least: int = 0) -> None:
    """Check that a text has from ``least`` to ``most`` printable characters, because it goes to
    logs and terminals."""
    if not least <= len(text) <= most:
        raise PeerFaultError(field, f"must have from {least} to {most} characters, but has {len(text)}")
    if not text.isprintable():
        raise PeerFaultError(field, "must have characters only that can be printed")


def check_seconds(field: str, message: Duration, most: float) -> float:
    """Check that a duration is from 0 to ``most`` seconds, and return it in seconds."""
    if not 0 <= message.nanos < _NANOS:
        raise PeerFaultError(field, f"must have from 0 to {_NANOS - 1} nanoseconds, but has {message.nanos}")
    value = seconds(message)
    check_within(field, value, 0, most)
    return value
