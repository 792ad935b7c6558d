"""A job: what one item asks of the model, as a state machine the model thread steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.engine.engine import Append, Appended
from slipstream.engine.errors import ContextExceededError, InvalidItemError
from slipstream.engine.prefill_time import ROUND_TAIL
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.engine.step_note import StepNote
from slipstream.sampling.outcome import LogprobRequest, TokenLogprobs
from slipstream.sampling.row import Choice, Proposed
from slipstream.sampling.rule import SamplingRule

MOST_STEPS = 64
"""That a job remembers."""


@dataclass(slots=True)
class JobTiming:
    """Seconds on this process's monotonic clock, and the wall clock for spans."""

    arrived_unix_ns: int = field(default_factory=time.time_ns)
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    """Of the first forward."""
    forward: float = 0.0
    """Sum over the forwards this job took part in, choosing included."""
    forward_count: int = 0
    step_token_count: int = 0
    """Tokens in the last forward, other sequences' included."""
    prefill: float = 0.0
    """By how much prompts made the forwards longer that this job waited for or took part in; set
    when it ends."""
    finished: float = 0.0
    steps: list[StepNote] = field(default_factory=list)
    """The first of the forwards, where the job has a label."""

    def merge(self, part: JobTiming) -> None:
        """A part has ended: its forwards are this job's too, if it took as many as any."""
        if part.forward_count >= self.forward_count:
            self.forward, self.forward_count = part.forward, part.forward_count
            self.step_token_count = part.step_token_count

    @property
    def queue(self) -> float:
        """Seconds from arrival to the first forward."""
        return (self.finished if self.started is None else self.started) - self.arrived

    @property
    def total(self) -> float:
        """Seconds from arrival to the result."""
        return self.finished - self.arrived


class Statement(NamedTuple):
    """Where a request says the sequence stands: keep ``base_length`` tokens, then come the
    committed tokens ``tail``."""

    base_length: int
    tail: TokenSequence[int]

    @property
    def committed_length(self) -> int:
        """Length of the committed tokens after this statement."""
        return self.base_length + len(self.tail)


Fork = Callable[[str, int], Sequence]
"""Gives a fork of a job's sequence under a name, cut to a length. It is given back when the job
over it ends."""


class Job:
    """Append the statement's tail and some uncommitted tokens, choose after the last ``wanted`` of
    them, maybe go on.

    A subclass says in `advance` what the choices mean. It reads its result from itself once that
    returned True. It may then go on as several jobs over forks of its sequence (`split`); it has
    ended once they all have.
    """

    drafting = False
    """Whether the choices are a draft's own."""

    steps_left: int = 0
    """How many tokens a job that appends its own choices will choose yet, if they may be chosen in
    one go."""

    parent: Job | None = None
    """Of a job that goes on over a fork."""

    label: str = ""
    """What whoever looks at its steps knows it by; empty if nobody does."""

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
        """``length_limit`` is the longest the sequence may become while this job runs; ``proposed``
        are the draws that the first choices test under the ratio test; a ``logprobs.prompt`` is the
        tail here."""
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
        """Whether a prompt's tokens are pending, or what follows it to its first choices."""
        self._prompt_left = 0
        self._overtaken = False
        self._length_limit = length_limit
        self._proposed = proposed
        self._logprobs = logprobs
        self._unscored_count = len(statement.tail) - 1 if logprobs is not None and logprobs.prompt else 0
        self.prefill_at_arrival = 0.0
        """`PrefillTime.arrived` when it began."""

    @property
    def overtaken(self) -> bool:
        """Whether nobody waits for the answer any more, and the sequence has been restated or
        closed."""
        return self._overtaken or (self.parent is not None and self.parent.overtaken)

    @property
    def only_chooses(self) -> bool:
        """Whether its steps take what their tokens do: a structure's masks and log-probabilities
        come on top."""
        return self.rule.structure is None and self._logprobs is None

    def overtake(self) -> None:
        """Drop this job, and those it has split into, at the next step."""
        self._overtaken = True

    def advance(self, choices: list[Choice]) -> bool:
        """Take the ``wanted`` choices. True if the job is done; else ``pending`` and ``wanted`` are
        set anew.

        Raises the fault of a choice that the job cannot do without.
        """
        raise NotImplementedError

    def split(self, fork: Fork) -> list[Job]:
        """After `advance` returned True: jobs over forks to go on with, this job their
        ``parent``."""
        return []

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        """Bring the sequence to the stated position. ContextExceededError, InvalidItemError or
        SequenceTooShortError."""
        self._check(context_length, vocabulary_size)
        base_length, tail = self.statement.base_length, self.statement.tail
        present = 0
        if self._unscored_count:  # what is there already brings no logits, and the tail's are wanted
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
        if self._length_limit > context_length:
            raise ContextExceededError(
                f"{self._length_limit} tokens do not fit into the context of {context_length}",
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
        """Take a step's answer. True if the job is done with it."""
        self.choices.extend(answer.choices)
        self.tail_logprobs.extend(answer.scores)
        if self.pending:
            return False
        self.is_prompt = False
        choices, self.choices = self.choices, []
        return self.advance(choices)


Ended = tuple[Job, Exception | None]
"""A job that has ended, and with what error if it failed."""

Finished = Callable[[list[Ended]], None]
"""Told after each step of the model thread's which jobs ended. Called there."""
