"""Readings of metrics, one of each kind."""

from __future__ import annotations

from slipstream.telemetry import instruments
from slipstream.telemetry.metrics import Distribution, Reading, reading


def some_readings() -> list[Reading]:
    seen = Distribution(instruments.VERIFY_TIME.bounds)
    for value in (0.0004, 0.02, 9.0):
        seen.observe(value)
    return [
        reading(instruments.GENERATION_TOKENS, 17),
        reading(instruments.ROUNDS, {("bonus", "draft"): 3, ("plain", "plain"): 4}),
        reading(instruments.SESSIONS, 2),
        reading(instruments.VERIFY_TIME, seen),
        reading(instruments.REQUESTS_FAILED, {}),
    ]
