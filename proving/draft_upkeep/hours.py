"""Hours of the orchestrator's wall clock, and what its metrics show in them."""

from __future__ import annotations

import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from proving.chaos.clock import ClockOfDay
from slipstream.client import Client

_HOUR = 3600
_SERIES = re.compile(
    r'^slipstream_task_(draft|accepted)_tokens_total\{draft="([^"]*)",task="([^"]*)"\} (\S+)$', re.MULTILINE
)

Counters = Mapping[tuple[str, str, str], float]
"""Values by kind (draft or accepted), draft and task."""


class Span(NamedTuple):
    """An hour with traffic: the counters at its beginning and its end."""

    hour: int
    before: Counters
    after: Counters


class Hours:
    """The hours in which there was traffic, in hours from now."""

    def __init__(self, clock: ClockOfDay, metrics_address: str, client: Client) -> None:
        self._clock = clock
        self._metrics_address = metrics_address
        self._client = client
        self.spans: list[Span] = []

    @contextmanager
    def hour(self, number: int) -> Iterator[None]:
        """Inside, it is so many hours from now."""
        self._clock.set(number * _HOUR)
        before = self._read()
        yield
        self._client.acceptance_history()  # which writes what was counted in this hour
        self.spans.append(Span(number, before, self._read()))

    def acceptance(self, hours: range, task: str) -> float:
        """Return a task's acceptance in some hours."""
        sums: defaultdict[str, float] = defaultdict(float)
        for span in self.spans:
            for (kind, draft, name), value in span.after.items():
                if span.hour in hours and name == task:
                    sums[kind] += value - span.before.get((kind, draft, name), 0.0)
        return sums["accepted"] / sums["draft"] if sums["draft"] else 0.0

    def _read(self) -> Counters:
        with urllib.request.urlopen(f"http://{self._metrics_address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return {(kind, draft, task): float(value) for kind, draft, task, value in _SERIES.findall(text)}
