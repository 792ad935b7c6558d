"""Seconds to protobuf Durations and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

_NANOS = 1_000_000_000


def duration(seconds: float) -> Duration:
    """Seconds as a Duration, to the nanosecond below; negative ones, which only clock trouble
    makes, as zero."""
    message = Duration()
    set_duration(message, seconds)
    return message


def set_duration(message: Duration, seconds: float) -> None:
    """The same, in a message's own Duration."""
    # Also where both are 0: to be set says that it is known.
    message.seconds, message.nanos = divmod(max(0, int(seconds * _NANOS)), _NANOS)


def seconds(message: Duration) -> float:
    """A Duration as seconds."""
    return message.seconds + message.nanos / _NANOS
