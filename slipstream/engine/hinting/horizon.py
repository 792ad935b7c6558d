"""The draft's guesses past the committed tokens of one session: how far, and along which lines.
Pure.

A line is a guess at the next tokens. The base line follows the draft's likeliest tokens. At an
uncertain position another choice begins a branch. All lines compete by survival, so one rule
decides how deep to guess and where to branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from slipstream.engine.hinting.calibration import LEAST_SURVIVAL, Calibration, survivals
from slipstream.engine.hinting.hints import MOST_HINTS, MOST_TOKENS, Hint, Source

MOST_LINES = 16
"""Lines that a session keeps, with branches that have not begun. More: a branch is rarely
missing, but each commit compares more of them."""

PROBE_SHARE = 0.02
"""Share of its time that a draft which is not worth its steps spends on single guesses. More: a
draft that recovers is found out earlier, but one that is never right costs more."""


@dataclass(slots=True, eq=False)
class Line:
    """A guess at the tokens after a context."""

    context: list[int]
    """Guessed tokens before the first own one that are not committed yet."""
    tokens: list[int]
    odds: list[float]
    """Odds of the tokens of context and line, each if all before it are right."""
    source: Source
    is_open: bool = False
    """True if it is the base line or has been continued, so that it is worth a hint."""
    is_alive: bool = True
    given_count: int = 0
    """Number of first own tokens that are no guesses: they spell text that is committed already."""

    @property
    def path(self) -> list[int]:
        """All its tokens after the committed ones."""
        return self.context + self.tokens

    @property
    def weight(self) -> float:
        """Odds that its context and its first own token are right."""
        return math.prod(self.odds[: len(self.context) + 1])


@dataclass(slots=True)
class Horizon:
    """The lines of one session."""

    length: int
    """Committed tokens that the draft knows."""
    calibration: Calibration = field(default_factory=Calibration)
    """The worth of the draft's odds: one for all its sessions."""
    source_id: int = 0
    temperature_class: int = 0
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin()

    def commit(self, position: int, tokens: Sequence[int]) -> None:
        """Take in committed tokens. Lines that contradict them end; a branch that they follow
        becomes the base line."""
        if position > self.length:  # something was lost: no line is known to follow the text
            self._keep([])
            self._begin()
        skipped = self.length - position
        added = list(tokens[skipped:]) if skipped > 0 else list(tokens)
        self.length = max(self.length, position + len(tokens))
        self._judge(added)
        self._keep([line for line in self.lines if _follows(line, added)])
        self._begin()

    def expect(self, tokens: Sequence[int], is_said_by: Callable[[Sequence[int]], bool]) -> None:
        """Take in text after the committed tokens, in tokens that may still change. Lines that do
        not begin with the text end; if there are no tokens, all stay."""
        if tokens:
            self._keep([line for line in self.lines if is_said_by(line.path)])
            self._begin(tokens)

    def to_continue(self, least: float) -> list[tuple[float, Line]]:
        """Return the lines worth another token and the odds that it is right, the likeliest first:
        of the lines that the verifier keeps, those whose odds reach ``least``."""
        maker = Source.DRAFT, self.source_id
        factor = self.calibration.factor(maker, self.temperature_class)
        odds = self.calibration.mean(maker, self.temperature_class)
        worth = []
        for line in self.lines[:MOST_HINTS]:
            products = survivals(line.odds, factor)
            if len(products) == len(line.odds) < MOST_TOKENS:
                worth.append((odds * (products[-1] if products else 1.0), line))
        worth.sort(key=lambda entry: -entry[0])
        return [entry for entry in worth if entry[0] >= max(least, LEAST_SURVIVAL)]

    def to_probe(self) -> Line | None:
        """Return the base line if nothing is guessed, so that a guess would show what the draft is
        worth now."""
        base = self.lines[0]
        return base if len(base.odds) == base.given_count else None

    def extend(self, line: Line, choices: Sequence[tuple[int, float]]) -> None:
        """Continue a line by the likeliest of ``choices``, (token, odds); the others begin
        branches."""
        context, odds = line.path, list(line.odds)
        line.is_open = True
        line.tokens.append(choices[0][0])
        line.odds.append(choices[0][1])
        branches = [Line(context, [token], [*odds, single], Source.BRANCH) for token, single in choices[1:]]
        self._keep([*self.lines, *branches])

    def hint(self, line: Line, next_due: float | None) -> Hint:
        """Return what to tell the verifier of a line. It begins at the committed tokens, so that
        the verifier can compare the context too."""
        survivals = tuple(accumulate(line.odds, mul))
        return Hint(self.length, tuple(line.path), survivals, line.source, self.source_id, self.length, next_due)

    def _judge(self, added: Sequence[int]) -> None:
        base = self.lines[0]
        guesses = zip(base.tokens, base.odds, added, strict=False)
        for index, (token, odds, committed) in enumerate(guesses):
            is_right = token == committed
            if index >= base.given_count:
                self.calibration.judge((Source.DRAFT, self.source_id), odds, is_right, self.temperature_class)
            if not is_right:
                break

    def _begin(self, given: Sequence[int] = ()) -> None:
        if not any(not line.context and line.is_open for line in self.lines):
            odds = [1.0] * len(given)
            self.lines.insert(0, Line([], [*given], odds, Source.DRAFT, is_open=True, given_count=len(given)))

    def _keep(self, kept: list[Line]) -> None:
        """Keep the base line and the branches that are likeliest to be needed, those first."""
        is_base = [not line.context and line.is_open for line in kept]
        order = sorted(range(len(kept)), key=lambda index: (not is_base[index], -kept[index].weight))
        best = [kept[index] for index in order[:MOST_LINES]]
        for line in self.lines:
            line.is_alive = line in best
        self.lines = best


def least_survival(tokens_per_second: float, seconds_to_target: float) -> float:
    """Return the survival from which a guess pays that takes ``seconds_to_target`` of the target's
    processors: it must be worth the tokens that the target would choose in that time."""
    return tokens_per_second * seconds_to_target


class Probes:
    """Says when a draft that is not worth its steps should guess a token nevertheless."""

    def __init__(self) -> None:
        self._last = -math.inf

    def record_step(self, now: float) -> None:
        """Record that a step of the draft ended."""
        self._last = now

    def seconds_to_wait(self, now: float, step_seconds: float) -> float:
        """Return the seconds until a guess is due."""
        return max(0.0, self._last + step_seconds / PROBE_SHARE - now)


def _follows(line: Line, added: Sequence[int]) -> bool:
    """Cut what is committed now from a line, and return whether it agrees and is of use yet."""
    path = line.path
    common = min(len(path), len(added))
    if path[:common] != list(added[:common]) or len(path) < len(added):
        return False
    passed = max(0, len(added) - len(line.context))
    line.context = line.context[len(added) :]
    line.tokens = line.tokens[passed:]
    line.given_count = max(0, line.given_count - passed)
    line.odds = line.odds[len(added) :]
    return line.is_open or bool(line.odds)
