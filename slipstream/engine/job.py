"""A job: the work of one item on the model, as a state machine that the model thread steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.agreed import ROUND_TAIL
from slipstream.engine.engine import Append, Appended
from slipstream.engine.errors import ContextExceededError, InvalidItemError
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.engine.step_note import StepSample
from slipstream.sampling.outcome import LogprobRequest, TokenLogprobs
from slipstream.sampling.row import Choice, Proposed
from slipstream.sampling.rule import SamplingRule


@dataclass(slots=True)
class JobTiming:
    """Times of a job, in seconds of this process's monotonic clock, and the wall clock for
    spans."""

    arrived_unix_ns: int = field(default_factory=time.time_ns)
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    """Start of the first forward."""
    forward: float = 0.0
    """Seconds of all forwards that this job took part in, including the choices."""
    forward_count: int = 0
    step_token_count: int = 0
    """Tokens in the last forward, including those of other sequences."""
    prefill: float = 0.0
    """Seconds by which prompts made the forwards longer that this job waited for or took part in.
    Set when the job ends."""
    finished: float = 0.0
    steps: StepSample = field(default_factory=StepSample)
    """Some of the forwards, if the job has a label."""

    @property
    def queue(self) -> float:
        """Seconds from arrival to the first forward."""
        return (self.finished if self.started is None else self.started) - self.arrived

    @property
    def total(self) -> float:
        """Seconds from arrival to the result."""
        return self.finished - self.arrived


class Statement(NamedTuple):
    """A request's position of the sequence: keep ``base_length`` tokens, then append the committed
    tokens ``tail``."""

    base_length: int
    tail: TokenSequence[int]

    @property
    def committed_length(self) -> int:
        """Number of committed tokens after this statement."""
        return self.base_length + len(self.tail)


class Job:
    """Appends the statement's tail and some uncommitted tokens, chooses after the last ``wanted``
    of them, and may continue.

    A subclass decides in `advance` what the choices mean, and holds the result once `advance` has
    returned True.
    """

    drafting = False
    """True if the choices are a draft's own."""

    steps_left: int = 0
    """Number of tokens that a job which appends its own choices may still choose in one multi-step
    run."""

    label: str = ""
    """Name for tracing; empty if the job is not traced."""

    failed_count = 0
    """Forwards with other jobs that failed while this one took part."""

    withdrawn = False
    """True if the job is to end as it is before its next step, without an error."""

    @property
    def may_restart(self) -> bool:
        """True if the job may lose its pages and begin again from its own tokens."""
        return False

    @property
    def settled_length(self) -> int | None:
        """Tokens that the cache may hold after a step; the job drops what is beyond them. None: all
        of them."""
        return None

    def catch_up(self) -> None:
        """Take in what the caller has said since the last step. The model thread calls it before
        each step. It raises nothing."""

    def append_branches(self, append: Append, row_count: int, most: int) -> list[Append]:
        """Return what the next step appends to forks of the job's sequence, besides ``append``: at
        most ``most`` tokens. The step has ``row_count`` rows without them."""
        return []

    def record_branch(self, append: Append, answer: Appended) -> None:
        """Record a step's answer to one of `append_branches`, before that to the job's own
        append."""

    def leave(self) -> None:
        """Release the pages that the job holds besides those of its sequence. The model thread
        calls it when the job leaves the engine."""

    def drop_hint(self) -> bool:
        """Leave out the hint tokens of the next step. Returns False if there are none."""
        return False

    def forsake_hints(self) -> bool:
        """Use no hint any more if the step that has failed verified one: it may have failed for it.
        Returns True if the job is to begin again."""
        return False

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        uncommitted: TokenSequence[int],
        rule: SamplingRule,
        *,
        wanted: int,
        length_limit: int,
        proposed: TokenSequence[Proposed] = (),
        logprobs: LogprobRequest | None = None,
    ) -> None:
        """``proposed`` are the draws that the first choices test under the ratio test. A
        ``logprobs.prompt`` means the tail here."""
        self.sequence = sequence
        self.statement = statement
        self.committed_length = statement.committed_length
        """Tokens of the sequence from here on are guesses, and are never shared."""
        self.rule = rule
        self.pending = [*statement.tail, *uncommitted]
        self.wanted = wanted
        self.choices: list[Choice] = []
        self.tail_logprobs: list[TokenLogprobs] = []
        self.timing = JobTiming()
        self.prefilled_count = 0
        self.candidate_count = 0
        self.is_prompt = False
        """True while a prompt's tokens are pending, or the tokens between them and the first
        choices."""
        self._prompt_left = 0
        self._overtaken = False
        self.length_limit = length_limit
        """Longest that the sequence may become while this job runs."""
        self._proposed = proposed
        self._logprobs = logprobs
        self._unscored_count = len(statement.tail) - 1 if logprobs is not None and logprobs.prompt else 0
        self.prefill_at_arrival = 0.0
        """`PrefillTime.at_arrival` of this job."""

    @property
    def submitted(self) -> float:
        """Time at which the job was last given to the model thread."""
        return self.timing.arrived

    @property
    def overtaken(self) -> bool:
        """True if no caller waits for the answer, because the sequence was restated or closed."""
        return self._overtaken

    def overtake(self) -> None:
        """Drop this job at the next step."""
        self._overtaken = True

    def advance(self, choices: list[Choice]) -> bool:
        """Receive the ``wanted`` choices. Returns True if the job is done; otherwise ``pending``
        and ``wanted`` are set again.

        Raises the error of a choice that the job cannot do without.
        """
        raise NotImplementedError

    def begin_again(self) -> None:
        """Prepare to begin once more after the sequence has lost its pages. Only if it
        ``may_restart``."""
        raise NotImplementedError

    def make_part(self, prefill_total: float, *, is_over: bool = False) -> bool:
        """Make a part of the choices so far that the caller is to get, and return whether there is
        one. ``prefill_total`` is the sum of the seconds that prompts took; ``is_over`` says that
        the job leaves the engine."""
        return False

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        """Bring the sequence to the stated position. ContextExceededError, InvalidItemError or
        SequenceTooShortError."""
        self._check(context_length, vocabulary_size)
        base_length, tail = self.statement.base_length, self.statement.tail
        present = 0
        if self._unscored_count:  # cached tokens give no logits, and the tail's are wanted
            cache.truncate(self.sequence, base_length)
        else:
            present = cache.rewind(self.sequence, base_length, tail[:-1])
            present += cache.adopt_prefix(self.sequence, tail[present:])
        self.prefilled_count = len(tail) - present
        self._prompt_left = (
            self.prefilled_count - 1 if self.prefilled_count > ROUND_TAIL else 0
        )  # a round's is the last
        self.is_prompt = self._prompt_left > 0
        del self.pending[:present]

    def _check(self, context_length: int, vocabulary_size: int) -> None:
        if not self.statement.tail:
            raise InvalidItemError("tail must hold at least one committed token", field="tail")
        if self.statement.base_length < 0:
            raise InvalidItemError("base_length must be 0 or more", field="base_length")
        for token in (min(self.pending), max(self.pending)):
            if not 0 <= token < vocabulary_size:
                raise InvalidItemError(f"token id {token} is not from 0 to {vocabulary_size - 1}", field="tail")
        if self.length_limit > context_length:
            raise ContextExceededError(
                f"{self.length_limit} tokens do not fit into the context of {context_length}",
                context_length=context_length,
            )

    def append(self, count: int) -> Append:
        """Move ``count`` pending tokens into the sequence's next step."""
        scored_count = min(count, self._unscored_count)
        self._unscored_count -= scored_count
        scored = self.pending[1 : 1 + scored_count]
        del self.pending[:count]
        prompt_count = min(count, self._prompt_left)
        self._prompt_left -= prompt_count
        return Append(
            self.sequence,
            count,
            wanted=max(0, self.wanted - len(self.choices) - len(self.pending)),
            rule=self.rule,
            committed_length=self.committed_length,
            prompt_count=prompt_count,
            drafting=self.drafting,
            candidate_count=self.candidate_count,
            proposed=self._proposed[len(self.choices) :],
            top_logprob_count=None if self._logprobs is None else self._logprobs.top_count,
            scored=scored,
        )

    def record_step(self, answer: Appended) -> bool:
        """Record a step's answer. Returns True if the job is done."""
        self.choices.extend(answer.choices)
        self.tail_logprobs.extend(answer.scores)
        if self.pending:
            return False
        self.is_prompt = False
        choices, self.choices = self.choices, []
        return self.advance(choices)


Ended = tuple[Job, Exception | None]
"""A job that has ended, and its error if it failed."""

Finished = Callable[[list[Ended]], None]
"""A callback for the jobs that have ended. The model thread calls it after each step."""
