"""The formula of what speculation brings, by acceptance, verify time and round trip."""

from __future__ import annotations

from collections.abc import Iterator

from tools.reference.markdown import table

_DRAFT_MS = 3.0
_LENGTHS = range(1, 33)
_VERIFY_MS = (10.0, 25.0, 66.0)
_ROUND_TRIPS_MS = (0.0, 10.0, 80.0)
_ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)


def expected_tokens(acceptance: float, length: int) -> float:
    """Return the mean tokens of a round: ``(1 - a^(K+1)) / (1 - a)`` (Leviathan et al. 2023)."""
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def synchronous_speedup(
    acceptance: float, verify_ms: float, round_trip_ms: float, draft_ms: float, length: int
) -> float:
    """Return the speed over plain decoding if each round waits for its proposal."""
    return expected_tokens(acceptance, length) * verify_ms / (verify_ms + length * draft_ms + round_trip_ms)


def best_length(acceptance: float, verify_ms: float, round_trip_ms: float, draft_ms: float = _DRAFT_MS) -> int:
    """Return the draft length with the largest synchronous speedup."""
    return max(_LENGTHS, key=lambda length: synchronous_speedup(acceptance, verify_ms, round_trip_ms, draft_ms, length))


def payoff_table() -> str:
    """Render the table for a draft step of 3 ms."""
    columns = ["verify", "round trip", *(f"acceptance {acceptance}" for acceptance in _ACCEPTANCES)]
    return table(columns, _rows(), numeric=range(len(columns)))


def _rows() -> Iterator[list[str]]:
    for verify in _VERIFY_MS:
        for trip in _ROUND_TRIPS_MS:
            yield [f"{verify:g} ms", f"{trip:g} ms", *(_cell(acceptance, verify, trip) for acceptance in _ACCEPTANCES)]


def _cell(acceptance: float, verify: float, trip: float) -> str:
    length = best_length(acceptance, verify, trip)
    return f"{synchronous_speedup(acceptance, verify, trip, _DRAFT_MS, length):.2f} (K = {length})"
