"""Seconds of a verifier's steps, for admission and for the deadlines of a silent verifier. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.peers.exchange import PeerTiming
from slipstream.step_times import StepTimes


class StepCurve:
    """The curve that a verifier measured at its start, corrected by the steps that it reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: StepTimes | None = None
        self._longest = 0
        """Tokens of the longest step that was profiled."""
        self._recorded = float("-inf")

    def profile(self, points: Sequence[tuple[int, float]], row_multiple: int = 1) -> None:
        """Begin with what the verifier measured: (token count, seconds), counts rising. Without
        points every time is unknown."""
        measured = [(count, seconds) for count, seconds in points if seconds > 0]
        self._times = StepTimes(measured, row_multiple) if measured else None
        self._longest = measured[-1][0] if measured else 0

    def record(self, timing: PeerTiming) -> None:
        """Record the steps of an answer. Steps with prompts are left out. All sessions report the
        steps that they share, and only the first report counts."""
        if self._times is None or timing.prefill or not timing.forward_count or not timing.step_token_count:
            return
        seconds, now = timing.forward / timing.forward_count, self._clock()
        if now - self._recorded >= seconds:
            self._recorded = now
            self._times.record(timing.step_token_count, seconds)

    def seconds(self, token_count: int) -> float:
        """Return the expected seconds of one step; 0 if they are unknown."""
        return 0.0 if self._times is None else self._times.seconds(token_count)

    def work(self, token_count: int) -> float:
        """Return the expected seconds of so many tokens, in steps no longer than the longest that
        was profiled; 0 if they are unknown."""
        if not self._longest:
            return 0.0
        return self.seconds(min(token_count, self._longest)) * max(1.0, token_count / self._longest)
