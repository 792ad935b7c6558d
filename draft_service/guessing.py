"""A job that guesses past the committed tokens of a sequence, and tells its guesses as hints.

::

    start --> the tail is read --> a guess, a guess .. --> the horizon: nothing more is worth a step
                                    |            ^                   |
                                    '--- told ---'                   v
                                                        paused, until a commit moves the horizon

A commit that agrees with the guesses changes nothing but the horizon. After one that contradicts
them, the cache keeps what both have in common, and the job guesses on from the committed tokens.

The base line is what the draft chooses. If its steps are slow, each also finds other likely
choices. Such a choice begins a branch, which the job continues on a fork of its sequence once that
is worth more than a longer base line. If the target follows a branch, that becomes the base line.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from threading import Lock
from typing import NamedTuple

from draft_service.committed import CommittedText
from draft_service.line_sequences import LineSequences
from draft_service.outcomes import odds_of
from slipstream.engine.continuing_job import ContinuingJob
from slipstream.engine.engine import Append
from slipstream.engine.hinting.calibration import LEAST_SURVIVAL, Calibration, temperature_class
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint, Source
from slipstream.engine.hinting.horizon import Horizon, Line, Probes, least_survival
from slipstream.engine.job import JobTiming, Statement
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule
from slipstream.step_times import StepTimes

SEND_SECONDS = 0.005
"""Seconds of guessing between two hints, and the longest multi-step run. Less: more messages. More:
the target hears of a guess later."""

BRANCH_STEP_SECONDS = 0.001
"""Seconds of a step from which on it looks for other choices. Shorter steps are taken in multi-step
runs, which cannot. Less: such a draft takes longer for each guess."""

CANDIDATE_COUNT = 4
"""Likely choices that a step looks for. More: choices that the target hardly ever makes."""


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
    """The lines that were continued since the part before, as they are by now."""

    hints: dict[Line, Hint]
    timing: JobTiming
    """Times since the part before."""


class GuessJob(ContinuingJob):
    """Job that guesses along the draft's own choices, and along other likely ones.

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
        self._base = self._line = self._horizon.lines[0]
        """The base line, and the line that the next step continues."""
        self._ended: set[Line] = set()
        """Lines after whose last token nothing follows."""
        self._news: dict[Line, None] = {}
        """Lines with tokens that were not told."""
        self._sequences = LineSequences(sequence)
        self._may_branch = False
        self.tokens: array[int] = array("q")
        """The committed tokens that the job has taken in. Set when it begins."""
        self._known_length = 0
        """Tokens of the sequence that equal committed ones, as far as it has so many."""
        self._is_stopped = False
        self._planned_count = 0
        """Tokens to guess until the next hint."""
        self._has_appended_one = False
        """True if the last step was no prompt's."""
        self._is_due = False
        """True if as many tokens were guessed as was planned."""
        self.parts: deque[GuessPart] = deque()
        """Parts that the event loop has not taken yet."""
        self.guess_count = 0
        """Tokens guessed so far."""

    @property
    def is_over(self) -> bool:
        return self._is_stopped

    @property
    def is_paused(self) -> bool:
        return not self._is_stopped and not self._next()[1]

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

    def leave(self) -> None:
        self._sequences.keep(())
        self.sequence, self._line = self._sequences.own, self._base

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        self._sequences.cache = cache
        self._may_branch = self.rule.structure is None and context_length > cache.page_size  # a fork shares pages
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
        self._line = self._base
        known = min(self._known_length, len(self.sequence))
        self.statement = Statement(known, self._tail_of(self._base, known))
        self.pending = [*self.statement.tail]
        self.choices.clear()
        read = self.prefilled_count
        super().begin(self._sequences.cache, context_length, vocabulary_size)
        self.prefilled_count = read  # of the caller's tail

    def _tail_of(self, line: Line, known: int) -> array[int]:
        """Return the committed tokens from ``known`` on, and those of a line."""
        return self.tokens[known:] + array("q", line.path)

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
        self._base = self._horizon.lines[0]
        self._ended = {line for line in self._ended if line.is_alive}
        self._text.guess = (length, tuple(self._base.path))

    def catch_up(self) -> None:
        if self._text.length == len(self.tokens):
            return
        base = self._base
        self.learn()
        sequences, own = self._sequences, self._sequences.own
        if self._base is not base:
            sequences.make_base(self._base)
            known = min(self._known_length, len(own))
            sequences.cache.rewind(own, known, self._tail_of(self._base, known)[:-1])
        sequences.keep(self._horizon.lines)
        self._known_length = len(self.tokens)
        if self._base is not base or not self._line.is_alive:
            self._go_to(self._base)
            self._plan()

    def _go_to(self, line: Line) -> None:
        """Let the next step continue a line."""
        self._line = line
        sequences = self._sequences
        self.sequence = sequences.own if line is self._base else sequences.sequence_of(line)
        known = min(self._known_length, len(self.sequence))
        tail = self._tail_of(line, known)
        sequences.cache.rewind(self.sequence, known, tail[:-1])
        self.pending = [*tail[len(self.sequence) - known :]]
        self.choices.clear()

    def append(self, count: int) -> Append:
        self._has_appended_one = count == 1
        return super().append(count)

    def advance(self, choices: list[Choice]) -> bool:
        choice = choices[0]
        if choice.token == VOID:  # no token is possible here: the line ends
            if choice.fault is not None and not self._line.path:
                raise choice.fault
            self._ended.add(self._line)
        else:
            self._horizon.extend(self._line, _likely(choice, self.rule))
            if choice.token in self.rule.ends:
                self._ended.add(self._line)
            self._news[self._line] = None
            self.guess_count += 1
            self.pending = [choice.token]
        self._planned_count -= 1
        if self._planned_count <= 0 or not self._room_of(self._line):
            if self._has_appended_one:
                self._worth.record_step(self.timing.step_token_count)
            self._is_due = True
            self._plan()
        else:
            self._allow_steps()
        return self.withdrawn

    def make_part(self, prefill_total: float, *, is_over: bool = False) -> bool:
        if self._base in self._news:
            self._text.guess = (self.committed_length, tuple(self._base.path))
        lines = [line for line in self._news if line.is_alive and line.path]
        if not lines or not (self._is_due or is_over):
            return False
        self._news, self._is_due = {}, False
        next_due = None if is_over or self.withdrawn else self._planned_count * self._worth.step_seconds
        hints = {line: self._horizon.hint(line, next_due) for line in lines}
        self.parts.append(GuessPart(hints, self.times_to_tell(prefill_total)))
        return True

    def _plan(self) -> None:
        """Decide how many tokens of which line to guess until the next hint; none: the job leaves
        the engine."""
        line, self._planned_count = self._next()
        if line is not self._line and self._planned_count:
            self._sequences.keep(self._horizon.lines)
            self._go_to(line)
        self.candidate_count = CANDIDATE_COUNT if self._finds_branches else 0
        self._allow_steps()
        self._rest(not self._planned_count)

    @property
    def _finds_branches(self) -> bool:
        return self._may_branch and self._worth.step_seconds >= BRANCH_STEP_SECONDS

    def _allow_steps(self) -> None:
        if self.rule.structure is None:  # a multi-step run knows no masks, and finds no candidates
            self.steps_left = 0 if self.candidate_count else self._planned_count

    def _rest(self, rests: bool) -> None:
        self.withdrawn = rests
        if self._is_stopped:  # the event loop may have set both in between
            self.withdrawn = True

    def _next(self) -> tuple[Line, int]:
        """Return the line to continue, and by how many tokens until the next hint."""
        base, count = self._base, len(self._base.path)
        room = self._room_of(base)
        if self._has_text_ended:
            return base, 0
        # The first token after the committed ones is told at once.
        most = int(SEND_SECONDS / self._worth.step_seconds) or 1 if count else 1
        if room and count < self._limits.least_length:
            return base, min(room, most, self._limits.least_length - count)
        with self._worth.lock:
            line, worth = self._next_worth_a_step()
        return line, min(worth, most, self._room_of(line))

    def _room_of(self, line: Line) -> int:
        """Return how many tokens may follow a line."""
        if line in self._ended:
            return 0
        count = len(line.path)
        return max(0, min(MOST_TOKENS, self._limits.until_length - len(self.tokens)) - count)

    @property
    def _has_text_ended(self) -> bool:
        """True if the target has chosen an end token."""
        return len(self.tokens) > self._start_length and self.tokens[-1] in self.rule.ends

    def _next_worth_a_step(self) -> tuple[Line, int]:
        """Return the line whose next token is likeliest, and a count of tokens.

        So many are expected to be worth their steps, and likelier than those of another line. It is
        one of the base line if it is time to see whether the draft has recovered.
        """
        worth, step_seconds = self._worth, self._worth.step_seconds
        least = max(LEAST_SURVIVAL, least_survival(self._text.price, worth.row_seconds))
        branches = self._finds_branches and self._sequences.has_room()
        found = [
            (odds, line)
            for odds, line in self._horizon.to_continue(least)
            if self._room_of(line) and (branches or line is self._base)
        ]
        if not found:
            is_probed = self._horizon.to_probe() is not None
            return self._base, int(is_probed and not worth.probes.seconds_to_wait(time.monotonic(), step_seconds))
        (odds, line), bar = found[0], max(least, found[1][0] if len(found) > 1 else 0.0)
        mean = worth.calibration.mean(worth.maker, self._temperature_class)
        return line, MOST_TOKENS if mean >= 1 else 1 + int(math.log(bar / odds) / math.log(mean))


def _likely(choice: Choice, rule: SamplingRule) -> list[tuple[int, float]]:
    """Return a draft's choice, and others that the target may make, with their odds. Nothing
    follows an end token, so none begins a branch."""
    odds = min(1.0, math.exp(choice.logprob))
    others = [(token, share) for token, share in odds_of(choice.candidates) if token != choice.token]
    total = sum([share for _, share in others])
    return [
        (choice.token, odds),
        *[(token, (1 - odds) * share / total) for token, share in others if token not in rule.ends],
    ]


def _longest(committed_length: int, limits: GuessLimits) -> int:
    """Return how many tokens the cache may hold: all but the last guess."""
    return max(committed_length, min(limits.until_length, committed_length + MOST_TOKENS) - 1)
