"""Seconds to protobuf Durations and back."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

_NANOS = 1_000_000_000


def duration(seconds: float) -> Duration:
    """Seconds as a Duration, to the nanosecond below; negative ones, which only clock trouble makes, as zero."""
    nanos = max(0, int(seconds * _NANOS))
    return Duration(seconds=nanos // _NANOS, nanos=nanos % _NANOS)


def seconds(message: Duration) -> float:
    """A Duration as seconds."""
    return message.seconds + message.nanos / _NANOS
