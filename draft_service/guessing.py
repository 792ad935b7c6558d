"""A job that guesses past the committed tokens of a sequence, and tells its guesses as hints.

::

    start --> the tail is read --> a guess, a guess .. --> the horizon: nothing more is worth a step
                                    |            ^                   |
                                    '--- told ---'                   v
                                                        paused, until a commit moves the horizon

A commit that agrees with the guesses changes nothing but the horizon. After one that contradicts
them, the cache keeps what both have in common, and the job guesses on from the committed tokens.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from threading import Lock
from typing import NamedTuple

from draft_service.committed import CommittedText
from slipstream.engine.continuing_job import ContinuingJob
from slipstream.engine.engine import Append
from slipstream.engine.hinting.calibration import LEAST_SURVIVAL, Calibration, temperature_class
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint, Source
from slipstream.engine.hinting.horizon import Horizon, Probes, least_survival
from slipstream.engine.job import JobTiming, Statement
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule
from slipstream.step_times import StepTimes

SEND_SECONDS = 0.005
"""Seconds of guessing between two hints, and the longest multi-step run. Less: more messages. More:
the target hears of a guess later."""


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
        self.row_seconds = self.step_seconds
        """One guess's share of them."""

    def record_step(self, row_count: int) -> None:
        """Record that a step of ``row_count`` rows ended. The model thread calls it."""
        self.step_seconds = self._times.seconds(row_count)
        self.row_seconds = self.step_seconds / row_count
        with self.lock:
            self.probes.record_step(time.monotonic())


class GuessLimits(NamedTuple):
    """Bounds of a job's guesses."""

    until_length: int
    """Length of the sequence that no guess exceeds."""
    least_length: int
    """Tokens past the committed ones to guess even if they are unlikely."""


class GuessPart(NamedTuple):
    """The line as it was guessed by now, and the times since the part before."""

    hint: Hint
    timing: JobTiming


class GuessJob(ContinuingJob):
    """Job that guesses along one line, the draft's own choices.

    The model thread owns it while it is in work, the event loop while it is paused.
    """

    drafting = True

    def __init__(
        self, sequence: Sequence, rule: SamplingRule, text: CommittedText, limits: GuessLimits, worth: DraftWorth
    ) -> None:
        """``text`` holds the tail, and what was committed meanwhile."""
        statement = Statement(text.base_length, tuple(text.tokens))
        super().__init__(
            sequence, statement, (), rule, wanted=1, length_limit=_longest(statement.committed_length, limits)
        )
        self._text, self._limits, self._worth = text, limits, worth
        self._start_length = statement.committed_length
        self._temperature_class = temperature_class(rule.temperature)
        self._horizon = Horizon(
            statement.committed_length, worth.calibration, worth.maker[1], temperature_class=self._temperature_class
        )
        self._line = self._horizon.lines[0]
        self._has_line_ended = False
        """True if nothing follows the line's last token."""
        self.tokens: array[int] = array("q")
        """The committed tokens that the job has taken in. Set when it begins."""
        self._known_length = 0
        """Tokens of the sequence that equal committed ones, as far as it has so many."""
        self._cache: SequenceCache
        self._is_stopped = False
        self._planned_count = 0
        """Tokens to guess until the next hint."""
        self._has_appended_one = False
        """True if the last step was no prompt's."""
        self._is_due = False
        """True if the line was guessed as far as was planned."""
        self._has_news = False
        """True if the line has tokens that were not told."""
        self.parts: deque[GuessPart] = deque()
        """Parts that the event loop has not taken yet."""
        self.guess_count = 0
        """Tokens guessed so far."""

    @property
    def is_over(self) -> bool:
        return self._is_stopped

    @property
    def is_paused(self) -> bool:
        return not self._is_stopped and not self._count_to_guess()

    @property
    def may_restart(self) -> bool:
        """True: it knows all its tokens."""
        return True

    def stop(self) -> None:
        self._is_stopped = True  # before the next line: see _rest
        self.withdrawn = True

    def begin_again(self) -> None:
        """Do nothing: `begin` knows the tokens."""

    def resume(self) -> None:
        super().resume()
        self._rest(False)

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        self._cache = cache
        if self.tokens:
            self._begin_again(context_length, vocabulary_size)
        else:
            super().begin(cache, context_length, vocabulary_size)
            self.tokens = self.sequence.tokens[: self.statement.base_length]
            self.tokens.extend(self.statement.tail)
        self._known_length = len(self.tokens)
        self.catch_up()
        self._plan()

    def _begin_again(self, context_length: int, vocabulary_size: int) -> None:
        self.learn()
        known = min(self._known_length, len(self.sequence))
        self.statement = Statement(known, self.tokens[known:] + array("q", self._line.path))
        self.pending = [*self.statement.tail]
        self.choices.clear()
        read = self.prefilled_count
        super().begin(self._cache, context_length, vocabulary_size)
        self.prefilled_count = read  # of the caller's tail

    def learn(self) -> None:
        known, length = len(self.tokens), self._text.length
        if length == known:
            return
        added = self._text.tokens[known - self._text.base_length : length - self._text.base_length]
        self.tokens.extend(added)
        self.committed_length = length
        self.length_limit = _longest(length, self._limits)
        with self._worth.lock:
            self._horizon.commit(known, added)
        if self._horizon.lines[0] is not self._line:
            self._line = self._horizon.lines[0]
            self._has_line_ended = self._has_news = False
        self._text.guess = (length, tuple(self._line.path))

    def catch_up(self) -> None:
        if self._text.length == len(self.tokens):
            return
        line = self._line
        self.learn()
        if self._line is not line:
            known = min(self._known_length, len(self.sequence))
            self._cache.rewind(self.sequence, known, self.tokens[known:-1])
            self.pending = [*self.tokens[len(self.sequence) :]]
            self.choices.clear()
            self._plan()
        self._known_length = len(self.tokens)

    def append(self, count: int) -> Append:
        self._has_appended_one = count == 1
        return super().append(count)

    def advance(self, choices: list[Choice]) -> bool:
        choice = choices[0]
        if choice.token == VOID:  # no token is possible here: the line ends
            if choice.fault is not None and not self._line.path:
                raise choice.fault
            self._has_line_ended = True
        else:
            self._horizon.extend(self._line, [(choice.token, min(1.0, math.exp(choice.logprob)))])
            self._has_line_ended = choice.token in self.rule.ends
            self._has_news = True
            self.guess_count += 1
            self.pending = [choice.token]
        self._planned_count -= 1
        if self._has_line_ended or self._planned_count <= 0:
            if self._has_appended_one:
                self._worth.record_step(self.timing.step_token_count)
            self._is_due = True
            self._plan()
        else:
            self._allow_steps()
        return self.withdrawn

    def make_part(self, prefill_total: float, *, is_over: bool = False) -> bool:
        if not (self._has_news and self._line.tokens):
            return False
        self._text.guess = (self.committed_length, tuple(self._line.path))
        if not (self._is_due or is_over):
            return False
        next_due = None if is_over or self.withdrawn else self._planned_count * self._worth.step_seconds
        self._has_news = self._is_due = False
        self.parts.append(GuessPart(self._horizon.hint(self._line, next_due), self.times_to_tell(prefill_total)))
        return True

    def _plan(self) -> None:
        """Decide how many tokens to guess until the next hint; none: the job leaves the engine."""
        self._planned_count = self._count_to_guess()
        self._allow_steps()
        self._rest(not self._planned_count)

    def _allow_steps(self) -> None:
        if self.rule.structure is None:  # a multi-step run knows no masks
            self.steps_left = self._planned_count

    def _rest(self, rests: bool) -> None:
        self.withdrawn = rests
        if self._is_stopped:  # the event loop may have set both in between
            self.withdrawn = True

    def _count_to_guess(self) -> int:
        """Return how many tokens to guess until the next hint."""
        count, length = len(self._line.tokens), len(self.tokens)
        room = min(MOST_TOKENS - count, self._limits.until_length - length - count)
        if room <= 0 or self._has_line_ended or self._has_text_ended:
            return 0
        # The first token of a line is told at once.
        most = min(room, int(SEND_SECONDS / self._worth.step_seconds) or 1) if count else 1
        if count < self._limits.least_length:
            return min(most, self._limits.least_length - count)
        with self._worth.lock:
            return min(most, self._count_worth_a_step())

    @property
    def _has_text_ended(self) -> bool:
        """True if the target has chosen an end token."""
        return len(self.tokens) > self._start_length and self.tokens[-1] in self.rule.ends

    def _count_worth_a_step(self) -> int:
        """Return how many more tokens are expected to be worth their steps; one if it is time to
        see whether the draft has recovered."""
        worth, step_seconds = self._worth, self._worth.step_seconds
        least = max(LEAST_SURVIVAL, least_survival(self._text.price, worth.row_seconds))
        found = self._horizon.to_continue(least)
        if not found:
            is_probed = self._horizon.to_probe() is not None
            return int(is_probed and not worth.probes.seconds_to_wait(time.monotonic(), step_seconds))
        odds = worth.calibration.mean(worth.maker, self._temperature_class)
        if odds >= 1:
            return MOST_TOKENS
        return 1 + int(math.log(least / found[0][0]) / math.log(odds))


def _longest(committed_length: int, limits: GuessLimits) -> int:
    """Return how many tokens the cache may hold: all but the last guess."""
    return max(committed_length, min(limits.until_length, committed_length + MOST_TOKENS) - 1)
