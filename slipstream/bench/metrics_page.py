"""Counters of draft tokens on a Prometheus page, as vLLM names them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from operator import add

from slipstream.bench.records import Acceptance

_SAMPLE = re.compile(r"^\w*[:_]spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total(?:\{[^}]*\})? (\S+)", re.M)


def acceptance_of(page: str) -> Acceptance | None:
    """Return the sums over all labels; None if the page has no such counter."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(page):
        sums[name] = sums.get(name, 0.0) + float(value)
    if not sums:
        return None
    return Acceptance(*(int(sums.get(name, 0)) for name in ("draft_tokens", "accepted_tokens", "drafts")))


def added(before: Acceptance | None, after: Acceptance | None) -> Acceptance | None:
    """Return what counters have grown by; None if nothing was drafted, or the server began
    again."""
    if before is None or after is None or after.draft_tokens <= before.draft_tokens:
        return None
    return Acceptance(
        after.draft_tokens - before.draft_tokens,
        after.accepted_tokens - before.accepted_tokens,
        after.steps - before.steps,
    )


def summed(counts: Iterable[Acceptance | None]) -> Acceptance | None:
    """Return the sum of those that are there; None of nothing."""
    told = [count for count in counts if count is not None]
    return reduce(add, told) if told else None
