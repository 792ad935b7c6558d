"""The lines of one job: what was guessed, and which line is worth another guess."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from draft_service.committed import CommittedText, Remainder
from draft_service.outcomes import odds_of
from draft_service.worth import SEND_SECONDS, DraftWorth
from slipstream.engine.hinting.calibration import LEAST_SURVIVAL, temperature_class
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint
from slipstream.engine.hinting.horizon import Horizon, Line, least_survival
from slipstream.sampling.row import VOID, Choice
from slipstream.sampling.rule import SamplingRule


class GuessLimits(NamedTuple):
    """Bounds of a job's guesses."""

    until_length: int
    """Length of the sequence that no guess exceeds."""
    least_length: int
    """Tokens past the committed ones to guess even if they are unlikely."""


class GuessLines:
    """Lines past the committed tokens. One thread at a time may use them."""

    def __init__(self, text: CommittedText, rule: SamplingRule, limits: GuessLimits, worth: DraftWorth) -> None:
        """The lines begin at the end of ``text``."""
        self._text, self._rule, self._limits, self._worth = text, rule, limits, worth
        self._temperature_class = temperature_class(rule.temperature)
        self._horizon = Horizon(
            text.length, worth.calibration, worth.maker[1], temperature_class=self._temperature_class
        )
        self._horizon.expect(text.known[1].tokens, text.known[1].is_said_by)
        self.base = self._horizon.lines[0]
        """The base line."""
        self._has_text_ended = False
        """True if the target has chosen an end token."""
        self._ended: set[Line] = set()
        """Lines after whose last token nothing follows."""
        self._news: dict[Line, None] = {}
        """Lines with tokens that were not told."""
        self.may_branch: Callable[[], bool] = lambda: False
        """Says whether branches may be continued now."""
        self.guess_count = 0
        """Tokens guessed so far."""

    @property
    def length(self) -> int:
        """The committed length that the lines know."""
        return self._horizon.length

    @property
    def alive(self) -> list[Line]:
        """All lines that agree with the committed tokens."""
        return self._horizon.lines

    def commit(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens."""
        with self._worth.lock:
            self._horizon.commit(self.length, tokens)
        self.base = self._horizon.lines[0]
        self._ended = {line for line in self._ended if line.is_alive}
        self._has_text_ended = tokens[-1] in self._rule.ends

    def expect(self, remainder: Remainder) -> None:
        """Take in what is known of the text after the committed tokens."""
        with self._worth.lock:
            self._horizon.expect(remainder.tokens, remainder.is_said_by)
        self.base = self._horizon.lines[0]
        self._ended = {line for line in self._ended if line.is_alive}

    def extend(self, line: Line, choice: Choice) -> None:
        """Continue a line by the draft's choice after it. Nothing follows an end token, or a
        position at which no token is possible."""
        if choice.token == VOID or choice.token in self._rule.ends:
            self._ended.add(line)
        if choice.token != VOID:
            self._horizon.extend(line, self._likely(choice))
            self._news[line] = None
            self.guess_count += 1

    def end(self, line: Line) -> None:
        """Let nothing follow a line."""
        self._ended.add(line)

    def has_news_of(self, line: Line) -> bool:
        """True if a line has tokens that were not told."""
        return line in self._news and line.is_alive and bool(line.path)

    def take_news(self, next_due: float | None) -> dict[Line, Hint]:
        """Return hints of the lines that have tokens which were not told."""
        lines = [line for line in self._news if self.has_news_of(line)]
        self._news.clear()
        return {line: self._horizon.hint(line, next_due) for line in lines}

    @property
    def has_news(self) -> bool:
        """True if any line has tokens that were not told."""
        return any(map(self.has_news_of, self._news))

    def room_of(self, line: Line) -> int:
        """Return how many tokens may follow a line."""
        if line in self._ended:
            return 0
        return max(0, min(MOST_TOKENS, self._limits.until_length - self.length) - len(line.path))

    def next(self) -> tuple[Line, int]:
        """Return the line to continue, and by how many tokens until the next hint."""
        base, count = self.base, len(self.base.path)
        room = self.room_of(base)
        if self._has_text_ended:
            return base, 0
        most = max(1, int(SEND_SECONDS / self._worth.step_seconds))
        if room and count < self._limits.least_length:
            return base, min(room, most, self._limits.least_length - count)
        with self._worth.lock:
            line, worth = self._next_worth_a_step()
        return line, min(worth, most, self.room_of(line))

    def branches_beside(self, line: Line, row_count: int) -> list[Line]:
        """Return the branches that a step of ``row_count`` rows, which continues a line, should
        continue too. The model thread calls it."""
        with self._worth.lock:
            found = self._worth_a_step()
        own = sum([odds for odds, other in found if other is line])
        others = [(odds, other) for odds, other in found if other is not line and other is not self.base]
        count = self._worth.branch_count([odds for odds, _ in others], own, row_count)
        return [other for _, other in others[:count]]

    def _next_worth_a_step(self) -> tuple[Line, int]:
        """Return the line to continue, and how many of its next tokens are expected to be worth
        their steps.

        It is the base line if that is worth a step, or else the likeliest branch. It is one token
        of the base line if it is time to see whether the draft has recovered.
        """
        worth, base = self._worth, self.base
        found = self._worth_a_step()
        if not found:
            is_due = not worth.probes.seconds_to_wait(time.monotonic(), worth.step_seconds)
            return base, int(is_due and self._horizon.to_probe() is not None)
        odds, line = next(((odds, line) for odds, line in found if line is base), found[0])
        mean = worth.calibration.mean(worth.maker, self._temperature_class)
        if mean >= 1:
            return line, MOST_TOKENS
        return line, 1 + int(math.log(self._least_survival / odds) / math.log(mean))

    @property
    def _least_survival(self) -> float:
        return max(LEAST_SURVIVAL, least_survival(self._text.price, self._worth.row_seconds))

    def _worth_a_step(self) -> list[tuple[float, Line]]:
        """Return the lines that are worth another token and the odds that it is right, the
        likeliest first. The caller holds the lock."""
        has_branches = self.may_branch()
        return [
            (odds, line)
            for odds, line in self._horizon.to_continue(self._least_survival)
            if self.room_of(line) and (has_branches or line is self.base)
        ]

    def _likely(self, choice: Choice) -> list[tuple[int, float]]:
        """Return a draft's choice, and others that the target may make, with their odds. What the
        choice's corrected odds leave is shared among the others. None of them is an end token."""
        odds = min(1.0, math.exp(choice.logprob))
        others = [(token, share) for token, share in odds_of(choice.candidates) if token != choice.token]
        if not others:
            return [(choice.token, odds)]
        with self._worth.lock:
            factor = self._worth.calibration.factor(self._worth.maker, self._temperature_class)
        left = max(0.0, 1 / max(factor, 1e-9) - odds) / sum([share for _, share in others])
        branches = [(token, min(1.0, left * share)) for token, share in others if token not in self._rule.ends]
        return [(choice.token, odds), *branches]
