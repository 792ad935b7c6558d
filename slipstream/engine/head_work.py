"""The heads' part of the model thread: after a step they guess for all its runs together.

::

    a step --> answers recorded --> guesses --> parts told --> the next step verifies what pays

If parts were told first, the event loop would take the interpreter's lock from the guesses.

Runs whose guesses do not pay rest (`slipstream.engine.hinting.own_worth`). While all of them rest,
steps follow one another in one call, as without heads.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slipstream.engine.engine import Append
from slipstream.engine.hidden_heads import HiddenHeads, Settled
from slipstream.engine.hinting.hints import Hint, Source
from slipstream.engine.hinting.own_worth import CommonWorth, RunWorth
from slipstream.engine.job import Job
from slipstream.engine.run_hints import RunHints
from slipstream.engine.run_job import RunJob
from slipstream.step_times import StepTimes

log = logging.getLogger(__name__)


class _Place(NamedTuple):
    """A job's segment of the last forward."""

    job: RunJob
    first_row: int
    first_logit_row: int
    start: int
    append: Append

    def settled(self, most: int) -> Settled:
        """Return what the step has made of it, with ``most`` tokens to guess. It may have no
        rows."""
        job, append = self.job, self.append
        row_count = min(append.token_count, len(job.tokens) - 1 - self.start)
        behind = row_count - 1 - (append.token_count - append.row_count)
        logit_row = self.first_logit_row + behind if behind >= 0 else -1
        pages = job.sequence.pages
        return Settled(self.first_row, row_count, logit_row, self.start, pages, job.tokens, job.rule, most)


class Verified(NamedTuple):
    """A hint's part in the next step."""

    source: Source
    survivals: Sequence[float]
    """Odds of the hint tokens that are verified."""


class HeadWork:
    """The work of heads for the runs of an engine. It belongs to the model thread."""

    def __init__(self, heads: HiddenHeads | None, seconds: float) -> None:
        """``seconds`` of a guess after one sequence, as measured at load."""
        self._heads = heads
        self._times = StepTimes([(1, max(seconds, 1e-6))])
        self._places: list[_Place] = []
        self._worths: defaultdict[int, CommonWorth] = defaultdict(CommonWorth)
        """The worth of guesses to runs of each class of temperatures."""
        self._guessed: set[RunJob] = set()
        """Runs with a guess that no step has seen."""
        self.guess_count = 0
        """Guesses so far, each after one run."""
        self.guess_seconds = 0.0
        """Seconds that they took."""

    def admit(self, hints: RunHints) -> None:
        """Let a run that begins use what all runs have learnt of guesses, and add to it."""
        hints.heads_worth = RunWorth(self._worths[hints.temperature_class])

    def seconds(self) -> float:
        """Return the seconds that the last guesses took before the step that is about to begin."""
        return self._times.seconds(len(self._guessed)) if self._guessed else 0.0

    def wants_single_steps(self, jobs: Sequence[Job]) -> bool:
        """Return True if the heads are to guess after the next step of one of the jobs."""
        return self._heads is not None and any(isinstance(job, RunJob) and job.takes_guesses for job in jobs)

    def record_step(self, batch: Sequence[tuple[Job, Append]], step_count: int) -> None:
        """Take note of where the jobs of a step lie in its forward, before they get its answers."""
        self._places.clear()
        if self._heads is None or step_count != 1:
            return
        row = logit_row = 0
        for job, append in batch:
            if isinstance(job, RunJob):
                start = len(append.sequence) - append.token_count
                self._places.append(_Place(job, row, logit_row, start, append))
            row += append.token_count
            logit_row += append.row_count

    def guess(self) -> float:
        """Guess for the runs of the last step that go on. Returns the seconds it took."""
        if self._heads is None or not self._places:
            return 0.0
        found = [(place.job, place.settled(place.job.guess_limit)) for place in self._places]
        self._places.clear()
        every = self._heads.reads_all_rows
        found = [(job, settled) for job, settled in found if _is_there(job, settled) and (every or settled.most)]
        if not found:
            return 0.0
        started = time.monotonic()
        try:
            guesses = self._heads.guess([settled for _, settled in found])
            count = 0
            for (job, settled), guess in zip(found, guesses, strict=True):
                if settled.most:
                    count += 1
                    self._keep(job, guess.tokens, guess.survivals)
        except Exception:  # hints are never worth a run
            log.exception("the heads have failed, and guess no more; the texts do not change")
            self._heads = None
            return 0.0
        taken = time.monotonic() - started
        self.guess_count += count
        self.guess_seconds += taken
        if count:
            self._times.record(count, taken)
        return taken

    def _keep(self, job: RunJob, tokens: tuple[int, ...], survivals: tuple[float, ...]) -> None:
        assert self._heads is not None and job.hints is not None
        self._guessed.add(job)
        if tokens:
            length = len(job.tokens)
            job.hints.guesses.put(Hint(length, tokens, survivals, Source.HEADS, self._heads.source_id, length))

    def record_use(
        self, stepping: Sequence[Job], used: Mapping[Job, Verified], times: StepTimes, plain: StepTimes
    ) -> None:
        """Record which hints the next step verifies, so that runs whose guesses do not pay rest.
        ``times`` are those of single steps, ``plain`` of steps in one call."""
        guessed = [job for job in stepping if isinstance(job, RunJob) and job in self._guessed]
        taken = self.seconds()
        self._guessed.clear()
        if not guessed:
            return
        count, base = len(stepping), times.seconds(len(stepping))
        plain_step = plain.seconds(count)
        shared = (taken + base - plain_step) / len(guessed)
        for job in guessed:
            use = used.get(job)
            survivals = use.survivals if use is not None and use.source is Source.HEADS else ()
            seconds = shared + times.seconds(count + len(survivals)) - base
            job.record_guess(sum(survivals), count * seconds / plain_step)


def _is_there(job: RunJob, settled: Settled) -> bool:
    """Return whether a sequence still has the pages of the rows that have settled."""
    return settled.row_count > 0 and len(job.sequence) >= settled.start + settled.row_count
