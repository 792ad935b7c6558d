"""The report of a load: figures of all its records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from typing import Any

from slipstream.bench.client_load import ClientLoad
from slipstream.bench.goals import meets
from slipstream.bench.records import Acceptance, Record

FORMAT = 1
"""Version of the report's JSON. A key is never removed or given another meaning within one."""

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A set of times, in milliseconds. All are 0 where there are none."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Distribution:
        """Return the figures of times in seconds. Percentiles lie between the nearest ranks in
        proportion, as numpy's and so vLLM's do."""
        ordered = sorted(value * 1e3 for value in seconds)
        if not ordered:
            return cls()
        return cls(sum(ordered) / len(ordered), *(_percentile(ordered, percent / 100) for percent in PERCENTILES))


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met the goals."""

    goals: Mapping[str, float]
    """Limits in milliseconds, by name."""
    requests: int
    requests_per_second: float
    tokens_per_second: float
    """Output tokens of these requests."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a load on one server."""

    completed: int
    failures: Mapping[str, int]
    """Number of failed requests of each kind."""
    seconds: float
    """From the first intended start to the end of the last answer."""
    prompt_tokens: int
    output_tokens: int
    counted: bool
    """False if the server did not count the tokens of each answer."""
    tokens_per_chunk: float
    ttft: Distribution
    itl: Distribution
    tpot: Distribution
    e2el: Distribution
    goodput: Goodput | None = None
    acceptance: Acceptance | None = None
    acceptance_source: str = ""
    """Source of the acceptance: "answers" or the server's "counters"; empty if there is none."""
    longest_retry_after: float | None = None
    """Longest wait in seconds that the server asked for when it refused a request."""
    client: ClientLoad = field(default_factory=ClientLoad)

    @property
    def requests_per_second(self) -> float:
        """Answers that came whole."""
        return self.completed / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of whole answers."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def total_tokens_per_second(self) -> float:
        """Prompt and output tokens of whole answers."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON. docs/guides/bench.md has the meaning of each key."""
        return {
            "requests": {"completed": self.completed, "failed": sum(self.failures.values())},
            "errors": dict(self.failures),
            "longest_retry_after_s": self.longest_retry_after,
            "duration_s": self.seconds,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "token_counts": "exact" if self.counted else "approximate",
            "tokens_per_chunk": self.tokens_per_chunk,
            "request_throughput": self.requests_per_second,
            "output_throughput": self.tokens_per_second,
            "total_token_throughput": self.total_tokens_per_second,
            **{f"{name}_ms": asdict(getattr(self, name)) for name in ("ttft", "itl", "tpot", "e2el")},
            "goodput": self.goodput and {**asdict(self.goodput), "goals": dict(self.goodput.goals)},
            "acceptance": self._acceptance(),
            "client": {**asdict(self.client), "limited": self.client.limited},
        }

    def _acceptance(self) -> dict[str, Any] | None:
        if self.acceptance is None:
            return None
        rates = {"rate": self.acceptance.rate, "mean_length": self.acceptance.mean_length}
        return {**asdict(self.acceptance), **rates, "source": self.acceptance_source}


def report_of(
    records: Sequence[Record],
    seconds: float,
    goals: Mapping[str, float] | None = None,
    client: ClientLoad | None = None,
    counters: Acceptance | None = None,
) -> Report:
    """Return the report of a load's records. ``counters`` is the acceptance that the server's
    metrics report, for servers whose answers say none."""
    whole = [record for record in records if not record.error]
    told = [record.acceptance for record in whole if record.acceptance is not None]
    waits = [record.retry_after for record in records if record.retry_after is not None]
    chunks = sum(len(record.chunks) for record in whole)
    output = sum(record.output_tokens for record in whole)
    return Report(
        completed=len(whole),
        failures=dict(Counter(record.error for record in records if record.error)),
        seconds=seconds,
        prompt_tokens=sum(record.prompt_tokens for record in whole),
        output_tokens=output,
        counted=all(record.counted for record in whole),
        tokens_per_chunk=output / chunks if chunks else 0.0,
        ttft=Distribution.of(record.ttft for record in whole if record.chunks),
        itl=Distribution.of(gap for record in whole for gap in record.itl),
        tpot=Distribution.of(record.tpot for record in whole if record.chunks and record.tpot is not None),
        e2el=Distribution.of(record.e2el for record in whole),
        goodput=_goodput(whole, seconds, goals) if goals else None,
        acceptance=reduce(add, told) if told else counters,
        acceptance_source="answers" if told else "counters" if counters else "",
        longest_retry_after=max(waits, default=None),
        client=client or ClientLoad(),
    )


def _goodput(whole: Sequence[Record], seconds: float, goals: Mapping[str, float]) -> Goodput:
    good = [record for record in whole if record.chunks and meets(record, goals)]
    span = seconds or 1.0
    return Goodput(goals, len(good), len(good) / span, sum(record.output_tokens for record in good) / span)
