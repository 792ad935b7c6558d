"""One exchange: a request and its answer, as far as headers and metrics tell of it."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.metrics import Metrics


class CallerLimits(Protocol):
    """The part of the contract's CallerLimits that headers tell."""

    max_turn_count: int
    turn_count: int
    tokens_per_minute: float
    left_token_count: float


@dataclass(slots=True)
class Exchange:
    """A request that is being answered, and what came of it so far. Times are in seconds."""

    request_id: str
    metrics: Metrics
    begun: float = field(default_factory=time.perf_counter)
    limits: CallerLimits | None = None
    """The caller's limits, once the orchestrator has told them."""
    first_token: float | None = None
    """Time from the request to its first token."""

    def seconds(self) -> float:
        """Return the time since the request came."""
        return time.perf_counter() - self.begun

    def note_token(self) -> None:
        """Note that a token has come."""
        if self.first_token is None:
            self.first_token = self.seconds()


_CURRENT: ContextVar[Exchange] = ContextVar("exchange")


def begin_exchange(request_id: str, metrics: Metrics) -> Exchange:
    """Begin an exchange. `current` returns it in this task, and in the tasks that it starts."""
    exchange = Exchange(request_id, metrics)
    _CURRENT.set(exchange)
    return exchange


def current() -> Exchange:
    """Return the exchange that this task belongs to."""
    return _CURRENT.get()
