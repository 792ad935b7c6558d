"""Numbers of a model's configuration that every engine needs to be finite and positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_POSITIONS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def is_positive(value: Any) -> bool:
    """Return True for a number that is finite as a float, and above 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return 0 < float(value) < float("inf")
    except OverflowError:  # a whole number that no float holds
        return False


def odd_position(parameters: Mapping[str, Any]) -> str | None:
    """Return the entry of ``rope_parameters`` that gives no frequencies, as text; None if there is
    no such entry. Entries that are None are left out."""
    kind = parameters.get("rope_type", "default")
    if not isinstance(kind, str):
        return f"rope_type {kind!r}"
    for key in _OF_POSITIONS:
        if parameters.get(key) is not None and not is_positive(parameters[key]):
            return f"{key} {_short(parameters[key])}"
    low, high = parameters.get("low_freq_factor"), parameters.get("high_freq_factor")
    if low is not None and high is not None and low >= high:
        return f"low_freq_factor {low}, which is not below its high_freq_factor {high}"
    return None


def _short(value: Any) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number of more digits than Python prints
        return "too large"
