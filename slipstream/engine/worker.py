"""The seam between the host of handles and runs and what computes them.

In: jobs, each with its sequence, its statement, its sampling rule and its hints. Out: the tokens
that the jobs have chosen, by way of `slipstream.engine.job.Job.record_step`. The engine's model
thread is one worker. Another one asks a stock engine over HTTP (`slipstream.stock`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slipstream.engine.errors import ModelThreadFailedError
from slipstream.engine.hinting.hints import Hint
from slipstream.engine.job import Finished, Job
from slipstream.engine.load import Load
from slipstream.engine.model import ModelFacts
from slipstream.engine.run_job import RunJob
from slipstream.engine.sequence import Sequence
from slipstream.engine.structure_matchers import StructureMatchers
from slipstream.processors import Processors
from slipstream.step_times import StepTimes

OnParts = Callable[[list[Job]], None]
"""A callback for jobs that have made parts and go on."""


class Served(Protocol):
    """Facts about what a worker serves. Nothing here changes once the worker has started."""

    @property
    def model(self) -> ModelFacts:
        """Facts about the model."""

    context_length: int
    """Longest sequence in tokens."""

    page_size: int
    """Tokens in a KV page; 1 if the pages are not the worker's own."""

    step_times: list[tuple[int, float]]
    """(rows, seconds) of a step as measured at start, rows rising; empty: not measured."""

    matchers: StructureMatchers
    """Matchers of structures. A worker whose matchers have no compiler refuses structures."""

    @property
    def mark(self) -> str:
        """Four hexadecimal digits: a hash of all that affects the logits' bits besides the
        model."""

    @property
    def row_multiple(self) -> int:
        """A step costs as much as its rows rounded up to a multiple of this."""

    @property
    def processors(self) -> Processors:
        """Processors that compute a forward, as far as they are known."""

    @property
    def kv_token_count(self) -> int:
        """Tokens that all KV pages hold together; 0 if that is not known."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """Promises that do not hold here, each as one sentence for people."""


class Worker(Protocol):
    """Computes jobs. The event loop calls it; it calls ``on_finished`` and ``on_parts`` from its
    own thread."""

    failure: ModelThreadFailedError | None
    """The reason why no job can be computed any more."""

    @property
    def served(self) -> Served:
        """The facts of what is served, once `start` has returned."""

    @property
    def load(self) -> Load:
        """The current load. Any thread may read it."""

    @property
    def step_times(self) -> StepTimes:
        """The times of recent steps. They belong to the worker."""

    def start(self) -> Served:
        """Begin to accept jobs. Raises the reason if it cannot. This blocks."""

    def abandon(self) -> None:
        """End the wait of `start` in another thread, because the process is about to end."""

    def stop(self) -> None:
        """Finish the current step and end. Unfinished jobs are dropped. This blocks."""

    def submit(self, job: Job) -> None:
        """Queue a job. QueueFullError; ModelThreadFailedError if the worker can compute no job any
        more; an error of its own if it cannot follow the job's rule."""

    def notice(self) -> None:
        """Have the worker look at its jobs soon: one of them is withdrawn."""

    def add_hint(self, run: RunJob, hint: Hint) -> None:
        """Let a run's next steps use a hint."""

    def add_sequence(self, sequence: Sequence) -> None:
        """Add a sequence that was opened."""

    def remove_sequence(self, sequence: Sequence) -> None:
        """Remove a sequence, release what it holds and drop its job."""


MakeWorker = Callable[[Finished, OnParts], Worker]
"""Makes the worker of a host from the host's two callbacks."""
