"""A job that guesses past the committed tokens of a sequence, and tells its guesses as hints.

::

    start --> the tail is read --> a guess, a guess .. --> the horizon: nothing more is worth a step
                                    |            ^                   |
                                    '--- told ---'                   v
                                                        paused, until a commit moves the horizon

A commit that agrees with the guesses changes nothing but the horizon. After one that contradicts
them, the cache keeps what both have in common, and the job guesses on from the committed tokens.

The base line is what the draft chooses. If its steps are slow, each also finds other likely
choices. Such a choice begins a branch, which the same steps continue on a fork of the sequence, as
far as its rows are worth their time. If the target follows a branch, that becomes the base line.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

from draft_service.committed import CommittedText
from draft_service.line_sequences import LineSequences
from draft_service.lines import GuessLimits, GuessLines
from draft_service.worth import DraftWorth
from slipstream.engine.continuing_job import ContinuingJob
from slipstream.engine.engine import Append, Appended
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint
from slipstream.engine.hinting.horizon import Line
from slipstream.engine.job import JobTiming, Statement
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule

CANDIDATE_COUNT = 4
"""Likely choices that a step looks for. More: choices that the target hardly ever makes."""


class GuessPart(NamedTuple):
    """The lines that were continued since the part before, as they are by now.

    None at all says that the job rests.
    """

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
        self._known = text.known
        """The state of the text that the job has taken in."""
        statement = Statement(text.base_length, (*text.tokens, *text.known[1].tokens))
        super().__init__(
            sequence, statement, (), rule, wanted=1, length_limit=_longest(statement.committed_length, limits)
        )
        self.committed_length = text.length
        self._text, self._limits, self._worth = text, limits, worth
        self.lines = GuessLines(text, rule, limits, worth)
        self._line = self.lines.base
        """The line that the next step continues first."""
        self._stepping: dict[Sequence, Line] = {}
        """Branches that the current step continues, by their sequences."""
        self._sequences = LineSequences(sequence)
        self._finds_branches = False
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
        self._is_expected = True
        """True unless the last part said that the job rests."""
        self.parts: deque[GuessPart] = deque()
        """Parts that the event loop has not taken yet."""

    @property
    def is_over(self) -> bool:
        return self._is_stopped

    @property
    def is_paused(self) -> bool:
        return not self._is_stopped and not self.lines.next()[1]

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
        self._stepping.clear()
        self._sequences.keep(())
        self.sequence, self._line = self._sequences.own, self.lines.base

    def begin(self, cache: SequenceCache, context_length: int, vocabulary_size: int) -> None:
        self._sequences.cache = cache
        self._finds_branches = (
            self._worth.finds_branches and self.rule.structure is None and context_length > cache.page_size
        )  # a fork shares pages
        self.lines.may_branch = self._may_branch
        if self.tokens:
            self._begin_again(context_length, vocabulary_size)
        else:
            super().begin(cache, context_length, vocabulary_size)
            self.tokens = self.sequence.tokens[: self.statement.base_length]
            self.tokens.extend(self.statement.tail[: self.committed_length - self.statement.base_length])
        self._known_length = len(self.tokens)
        self.catch_up()
        self._plan()

    def _may_branch(self) -> bool:
        return self._finds_branches and self._sequences.has_room()

    def _begin_again(self, context_length: int, vocabulary_size: int) -> None:
        self.learn()
        self._line = self.lines.base
        known = min(self._known_length, len(self.sequence))
        self.statement = Statement(known, self._tail_of(self.lines.base, known))
        self.pending = [*self.statement.tail]
        self.choices.clear()
        read = self.prefilled_count
        super().begin(self._sequences.cache, context_length, vocabulary_size)
        self.prefilled_count = read  # of the caller's tail

    def _tail_of(self, line: Line, known: int) -> array[int]:
        """Return the committed tokens from ``known`` on, and those of a line."""
        return self.tokens[known:] + array("q", line.path)

    def learn(self) -> None:
        known, (length, remainder) = len(self.tokens), self._text.known
        if (length, remainder) == self._known:
            return
        self._known = (length, remainder)
        if length > known:
            added = self._text.tokens[known - self._text.base_length : length - self._text.base_length]
            self.tokens.extend(added)
            self.committed_length = length
            self.length_limit = _longest(length, self._limits)
            self.lines.commit(added)
        self.lines.expect(remainder)
        self._text.guess = (length, tuple(self.lines.base.path))

    def catch_up(self) -> None:
        if self._text.known == self._known:
            return
        base = self.lines.base
        self.learn()
        sequences, own = self._sequences, self._sequences.own
        if self.lines.base is not base:
            sequences.make_base(self.lines.base)
            known = min(self._known_length, len(own))
            sequences.cache.rewind(own, known, self._tail_of(self.lines.base, known)[:-1])
        sequences.keep(self.lines.alive)
        self._known_length = len(self.tokens)
        if self.lines.base is not base or not self._line.is_alive:
            self._go_to(self.lines.base)
            self._plan()

    def _go_to(self, line: Line) -> None:
        """Let the next step continue a line."""
        self._line = line
        sequences = self._sequences
        self.sequence = sequences.own if line is self.lines.base else sequences.sequence_of(line)
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
        if choice.fault is not None and not self._line.path:
            raise choice.fault
        self.lines.extend(self._line, choice)
        self.pending = [choice.token] if choice.token != VOID else []
        self._planned_count -= 1
        if self._planned_count <= 0 or not self.lines.room_of(self._line):
            if self._has_appended_one:
                self._worth.record_step(self.timing.step_token_count)
            self._is_due = True
            self._plan()
        else:
            self._allow_steps()
        return self.withdrawn

    def append_branches(self, append: Append, row_count: int, most: int) -> list[Append]:
        if self.pending or append.token_count > 1 or not self._finds_branches:
            return []
        # What this step computes for the job's own sequence is not there yet.
        computed = len(self._sequences.own) - (append.token_count if self._line is self.lines.base else 0)
        appends: list[Append] = []
        for line in self.lines.branches_beside(self._line, row_count):
            tail = self._sequences.extend(line, self.tokens, self._known_length, computed, most)
            if not tail:
                break
            most -= tail
            sequence = self._sequences.sequence_of(line)
            self._stepping[sequence] = line
            appends.append(append._replace(sequence=sequence, token_count=tail))
        return appends

    def record_branch(self, append: Append, answer: Appended) -> None:
        line = self._stepping.pop(append.sequence)
        if answer.error is not None:
            self.lines.end(line)
        elif line.is_alive:
            self.lines.extend(line, answer.choices[0])

    def make_part(self, prefill_total: float, *, is_over: bool = False) -> bool:
        lines = self.lines
        if lines.has_news_of(lines.base):
            self._text.guess = (self.committed_length, tuple(lines.base.path))
        rests = is_over or self.withdrawn
        if not (lines.has_news and (self._is_due or rests)) and not (rests and self._is_expected):
            return False
        self._is_due, self._is_expected = False, not rests
        next_due = None if rests else self._planned_count * self._worth.step_seconds
        self.parts.append(GuessPart(lines.take_news(next_due), self.times_to_tell(prefill_total)))
        return True

    def _plan(self) -> None:
        """Decide how many tokens of which line to guess until the next hint; none: the job leaves
        the engine."""
        line, self._planned_count = self.lines.next()
        if line is not self._line and self._planned_count:
            self._sequences.keep(self.lines.alive)
            self._go_to(line)
        self.candidate_count = CANDIDATE_COUNT if self._finds_branches else 0
        self._allow_steps()
        self._rest(not self._planned_count)

    def _allow_steps(self) -> None:
        if self.rule.structure is None:  # a multi-step run knows no masks, and finds no candidates
            self.steps_left = 0 if self.candidate_count else self._planned_count

    def _rest(self, rests: bool) -> None:
        self.withdrawn = rests
        if self._is_stopped:  # the event loop may have set both in between
            self.withdrawn = True


def _longest(committed_length: int, limits: GuessLimits) -> int:
    """Return how many tokens the cache may hold: all but the last guess."""
    return max(committed_length, min(limits.until_length, committed_length + MOST_TOKENS) - 1)
