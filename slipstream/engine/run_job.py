"""A run: a job that chooses token after token without being asked for each.

::

    start --> the tail is read --> a step, a step .. --> an end token, until_length, or a stop
                                    |            ^
                      granted_length|            | a grant
                                    v            |
                                    paused: the engine has no job

A run has its own copy of all its tokens. So it can go on after its sequence has lost its pages.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from enum import Enum
from typing import NamedTuple

from slipstream.engine.continuing_job import ContinuingJob
from slipstream.engine.hinting.calibration import temperature_class
from slipstream.engine.hinting.hints import Candidate, Hint, Source
from slipstream.engine.hinting.selection import Offer
from slipstream.engine.job import JobTiming, Statement
from slipstream.engine.run_hints import HintTerms, RunHints, RunStep, merged
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.sampling.coupled import accepted_count
from slipstream.sampling.outcome import LogprobRequest
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule

PART_SECONDS = 0.01
"""Seconds for which chosen tokens wait until they are told, and the longest multi-step run of a
target. Telling takes as long as a step of a small model."""


class RunEnd(Enum):
    """The reason for which a run has ended."""

    TOKEN = "token"
    """The last token is one of the rule's end tokens."""
    UNTIL = "until"
    """The run has reached its length."""
    STOPPED = "stopped"
    """The run was stopped."""


class RunLimits(NamedTuple):
    """Lengths of a run's sequence, the last chosen token included."""

    until_length: int
    """The length at which the run ends."""
    granted_length: int
    """The length at which it pauses."""


class RunPart(NamedTuple):
    """The choices of a run since the part before."""

    position: int
    """The sequence's length before the first of them."""
    choices: list[Choice]
    timing: JobTiming
    """Times since the part before, or since the job was submitted."""
    steps: list[RunStep]
    """The steps that made the choices."""


class RunJob(ContinuingJob):
    """Job that chooses tokens up to its granted length, and tells them in parts."""

    def __init__(
        self,
        sequence: Sequence,
        statement: Statement,
        rule: SamplingRule,
        limits: RunLimits,
        logprobs: LogprobRequest | None = None,
        hinting: HintTerms | None = None,
    ) -> None:
        """``hinting`` None: hints are ignored."""
        super().__init__(
            sequence, statement, (), rule, wanted=1, length_limit=limits.until_length - 1, logprobs=logprobs
        )
        self.hints = None if hinting is None else RunHints(hinting, temperature_class(rule.temperature))
        self._hint: tuple[int, ...] = ()
        """Hint tokens in the next step."""
        self._hint_maker: tuple[Source, int] | None = None
        """Source and source_id of the hint."""
        self._steps_to_tell: list[RunStep] = []
        self._forward_noted = 0.0
        """Seconds of forwards that are in a step already."""
        self.until_length, self.granted_length = limits
        self._end: RunEnd | None = None
        self.parts: deque[RunPart] = deque()
        """Parts that the event loop has not taken yet."""
        self.withdrawn = False
        self.tokens: array[int] = array("q")
        """All tokens of the sequence, the last choice included. Set when the job begins."""
        self._choices_to_tell: list[Choice] = []
        self.has_begun_choosing = False
        """True once the prompt is read."""
        self._takes_several = rule.structure is None and logprobs is None and not rule.draws_ratios

    @property
    def length(self) -> int:
        """The sequence's length, the last choice included."""
        return self.committed_length

    @property
    def end(self) -> RunEnd | None:
        """The reason for which the run has ended; None while it goes on or is paused."""
        return self._end or (RunEnd.STOPPED if self.withdrawn else None)

    @property
    def is_over(self) -> bool:
        return self.end is not None

    @property
    def is_paused(self) -> bool:
        """True if the run may not choose another token before it gets a grant."""
        return self.end is None and self.length >= self.granted_length

    @property
    def may_restart(self) -> bool:
        """True if the run can go on after the loss of its pages.

        It cannot if a part of its tail is read and log-probabilities of the tail are asked for.
        """
        return self.has_begun_choosing or self._logprobs is None or not self._logprobs.prompt

    def grant(self, granted_length: int) -> None:
        """Let the run go on to a length. Of several grants the greatest counts."""
        self.granted_length = max(self.granted_length, granted_length)

    def stop(self) -> None:
        self.withdrawn = True

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        read = self.prefilled_count
        super().begin(cache, context_length, vocabulary_size)
        self.prefilled_count = read or self.prefilled_count  # of the caller's tail: the job may begin again
        if not self.tokens:
            self.tokens = self.sequence.tokens[: self.statement.base_length]
            self.tokens.extend(self.statement.tail)

    @property
    def settled_length(self) -> int | None:
        return len(self.tokens) - 1

    @property
    def may_take_hint(self) -> bool:
        """True if a step that appends all that is pending may verify a hint after it."""
        return self.hints is not None and not self._hint

    @property
    def may_be_held(self) -> bool:
        """True if steps of the run may wait for hints. A prompt's never does."""
        return self.hints is not None and self.hints.terms.longest_hold > 0 and self.has_begun_choosing

    def offer_hint(self, hint: Hint) -> bool:
        """Leave a hint for the next steps. Returns True if the model thread has to be told. Any
        thread may call this."""
        hints = self.hints  # the model thread may forsake them now
        return hints is not None and hints.offer(hint)

    def take_hints(self) -> None:
        """Take in the hints that were left."""
        if self.hints is not None:
            self.hints.take_offered(self.tokens)

    def best_hint(self) -> tuple[Candidate, Offer] | None:
        """Return the best hint for the next step, and what it is worth; None if there is none."""
        if self.hints is None or not self.hints.is_active:
            return None
        return self.hints.best(self.tokens, self._hint_limit)

    def held_until(
        self, found: tuple[Candidate, Offer] | None, others_step: float | None, plain_rate: float, now: float
    ) -> float | None:
        """Return the time until which the next step waits for a better hint than ``found``; see
        `RunHints.held_until`."""
        if self.hints is None:
            return None
        return self.hints.held_until(found, self._hint_limit, others_step, plain_rate, now)

    @property
    def _hint_limit(self) -> int:
        """Most hint tokens that a step may use: one more is chosen."""
        return min(self.until_length, self.granted_length) - self.length - 1

    @property
    def takes_guesses(self) -> bool:
        """True if the target's heads are to guess after the run's steps: it uses them, and it does
        not rest because they do not pay."""
        if self.hints is None or not self.hints.terms.takes_heads or self.end is not None:
            return False
        return self.hints.terms.fixed_count > 0 or not self.hints.heads_worth.rests_at(self.length)

    @property
    def guess_limit(self) -> int:
        """Most tokens for the heads to guess after the last choice. 0: none, because the run rests,
        pauses, is over, or reads its prompt."""
        if not (self.takes_guesses and self.has_begun_choosing and len(self.pending) == 1):
            return 0
        return max(0, self._hint_limit)

    def record_guess(self, gain: float, cost: float) -> None:
        """Record what a guess of the heads is expected to bring and to cost, in tokens."""
        if self.hints is not None:
            self.hints.heads_worth.record(gain, cost, self.length)

    def take_hint(self, tokens: tuple[int, ...], source: Source, source_id: int = 0) -> None:
        """Verify hint tokens in the next step, after what is pending."""
        self._hint, self._hint_maker = tokens, (source, source_id)
        self.pending += tokens
        self.wanted = 1 + len(tokens)

    def drop_hint(self) -> bool:
        if not self._hint:
            return False
        del self.pending[-len(self._hint) :]
        self._hint, self.wanted = (), 1
        return True

    def forsake_hints(self) -> bool:
        if not self._hint or not self.may_restart:
            return False
        self.hints = None
        return True

    def begin_again(self) -> None:
        self.drop_hint()
        if self.tokens:
            self.statement = Statement(0, self.tokens[:])
            self.pending = [*self.tokens]

    def advance(self, choices: list[Choice]) -> bool:
        if choices[0].fault is not None:
            raise choices[0].fault
        self.has_begun_choosing = True
        hint, before = self._hint, self.length
        accepted = accepted_count(hint, [choice.token for choice in choices])
        for choice in choices[: accepted + 1]:
            if choice.token == VOID:  # the next step meets the fault that it would meet without hints
                break
            self._append(choice)
            if self.end is not None:
                break
        self._note_step(self.length - before, len(hint), accepted)
        if self.hints is not None and self.hints.terms.takes_heads:
            self.hints.heads_worth.advance(self.length - before)
        self._hint = ()
        self.pending, self.wanted = [self.tokens[-1]], 1
        if self._takes_several:
            self.steps_left = min(self.until_length, self.granted_length) - self.length
        return self.end is not None or self.is_paused

    def _append(self, choice: Choice) -> None:
        self.tokens.append(choice.token)
        self._choices_to_tell.append(choice)
        self.committed_length += 1
        if choice.token in self.rule.ends:
            self._end = RunEnd.TOKEN
        elif self.length >= self.until_length:
            self._end = RunEnd.UNTIL

    def _note_step(self, token_count: int, hint_count: int, accepted_count: int) -> None:
        forward, self._forward_noted = self.timing.forward - self._forward_noted, self.timing.forward
        held = 0.0 if self.hints is None else self.hints.record_step(time.monotonic(), self.length, forward)
        source, source_id = self._hint_maker if self._hint_maker and hint_count else (None, 0)
        self._steps_to_tell.append(
            RunStep(token_count, hint_count, min(accepted_count, token_count), source, forward, held, source_id)
        )

    def make_part(self, prefill_total: float, *, is_over: bool = False) -> bool:
        if not self._choices_to_tell:
            return False
        may_wait = self.is_told and not is_over and self.seconds_since_told() < PART_SECONDS
        is_held = self.hints is not None and self.hints.is_holding
        if may_wait and not (self.is_paused or self.is_over or is_held):
            return False
        choices, self._choices_to_tell = self._choices_to_tell, []
        steps, self._steps_to_tell = merged(self._steps_to_tell), []
        self.parts.append(RunPart(self.length - len(choices), choices, self.times_to_tell(prefill_total), steps))
        return True
