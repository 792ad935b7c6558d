"""Conversion of seconds to protobuf Durations and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

_NANOS = 1_000_000_000


def duration(seconds: float) -> Duration:
    """Return seconds as a Duration, rounded down to a nanosecond. Negative seconds, which only a
    clock that jumps makes, become zero."""
    message = Duration()
    set_duration(message, seconds)
    return message


def set_duration(message: Duration, seconds: float) -> None:
    """Write seconds into a Duration that a message holds."""
    # Also if both are 0: a field that is set says that the time is known.
    message.seconds, message.nanos = divmod(max(0, int(seconds * _NANOS)), _NANOS)


def seconds(message: Duration) -> float:
    """Return a Duration as seconds."""
    return message.seconds + message.nanos / _NANOS
