"""Service-level objectives of a request, written as vLLM writes them: ``ttft:200 tpot:50``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.bench.records import Record
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

GOALS = ("ttft", "tpot", "e2el")


class BadOptionError(SlipstreamError):
    """An option of the load does not say what it should."""

    reason = Reason.INVALID_FIELDS


def is_goal(word: str) -> bool:
    """Return whether a word is a goal rather than an address."""
    return word.partition(":")[0] in GOALS


def parse_goals(texts: Sequence[str]) -> dict[str, float]:
    """Return the limit in milliseconds of each goal. BadOptionError if a text is none."""
    goals = {}
    for word in " ".join(texts).replace(",", " ").split():
        name, _, limit = word.partition(":")
        try:
            if name not in GOALS or not float(limit) > 0:
                raise ValueError
        except ValueError:
            expected = "ttft, tpot or e2el, a colon and milliseconds above 0: ttft:200 tpot:50"
            raise BadOptionError(f"--goodput must be {expected}; but it is {word}") from None
        goals[name] = float(limit)
    return goals


def meets(record: Record, goals: Mapping[str, float]) -> bool:
    """Return whether an answer is within every limit. An answer of one token meets any ``tpot``."""
    return all((getattr(record, name) or 0.0) * 1e3 <= limit for name, limit in goals.items())
