"""The worth of a draft's guesses: how often they are right, and what a step takes."""

from __future__ import annotations

import time
from threading import Lock

from slipstream.engine.hinting.calibration import Calibration
from slipstream.engine.hinting.hints import Source
from slipstream.engine.hinting.horizon import Probes
from slipstream.engine.hinting.selection import best_prefix
from slipstream.step_times import StepTimes

SEND_SECONDS = 0.005
"""Seconds of guessing between two hints, and the longest multi-step run. Less: more messages. More:
the target hears of a guess later."""

BRANCH_STEP_SECONDS = 0.001
"""Seconds of a step from which on it looks for other choices. Shorter steps are taken in multi-step
runs, which cannot. Less: such a draft takes longer for each guess."""


class DraftWorth:
    """Record that all guesses of a draft share: how often they are right, and what a step takes."""

    def __init__(self, source_id: int, times: StepTimes) -> None:
        """``times`` belong to the model thread."""
        self.maker = (Source.DRAFT, source_id)
        self.calibration = Calibration()
        self.probes = Probes()
        self.lock = Lock()
        """Held while calibration or probes are used: the event loop reads them for paused jobs."""
        self._times = times
        self.step_seconds = times.seconds(1)
        """Expected seconds of a step like the last one."""
        self._least_seconds = self.step_seconds
        """Seconds of a lone step when the machine did least else."""
        self.row_seconds = self.step_seconds
        """One guess's share of them."""

    @property
    def finds_branches(self) -> bool:
        """True if steps look for other choices."""
        return self._least_seconds >= BRANCH_STEP_SECONDS

    def record_step(self, row_count: int) -> None:
        """Record that a step of ``row_count`` rows ended. The model thread calls it."""
        self.step_seconds = self._times.seconds(row_count)
        self.row_seconds = self.step_seconds / row_count
        self._least_seconds = min(self._least_seconds, self._times.seconds(1))
        with self.lock:
            self.probes.record_step(time.monotonic())

    def branch_count(self, odds: list[float], own: float, row_count: int) -> int:
        """Return how many branches of these odds to add to a step of ``row_count`` rows. Each of
        its rows is taken to have odds of ``own``. The model thread calls it."""
        return best_prefix(odds, own * row_count, row_count, self._times)[0]
