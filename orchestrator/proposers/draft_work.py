"""The work of a session's draft on hints, until a round shows it."""

from __future__ import annotations

import time

from orchestrator.peers.exchange import PeerTiming, Work
from slipstream.telemetry.tracing import new_span_of


class DraftWork:
    """Work and failures since they were last taken. Consecutive work is shown as one."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._span_id = 0
        """Id of the next work's span, if the draft has spans below it."""

    def begin(self, traceparent: str) -> str:
        """Begin a stretch of guessing within a trace. Return the traceparent of the draft's
        spans."""
        self._span_id, below = new_span_of(traceparent)
        return below

    def record(self, address: str, timing: PeerTiming, token_count: int) -> None:
        """Record work on hints of so many tokens that has just come."""
        now = time.monotonic()
        self._add(Work(address, now - timing.round_trip, now, token_count, timing))

    def record_failure(self, address: str, error: Exception) -> None:
        """Record that the draft has just failed."""
        now = time.monotonic()
        self._add(Work(address, now, now, 0, None, error))

    def take(self) -> list[Work]:
        """Return what was recorded since the last call."""
        works, self._works = self._works, []
        return works

    def clear(self) -> None:
        """Forget what was recorded: it belongs to a trace that has ended."""
        self._works, self._span_id = [], 0

    def _add(self, work: Work) -> None:
        work, self._span_id = work._replace(span_id=self._span_id), 0
        last = self._works[-1] if self._works else None
        if last is not None and last.timing is not None and work.timing is not None and not work.span_id:
            self._works[-1] = last.then(work)
        else:
            self._works.append(work)
