"""Scenarios of simulated hints, and the texts of their sessions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.hinting.hints import MOST_TOKENS

PROMPT = 10
"""Tokens of each prompt."""

PROFILED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Row counts of the steps that were measured at start."""

_PASSAGE = 40
"""Tokens of a passage that comes again."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times are in seconds."""

    sessions: int = 1
    round_trip: float = 0.0
    token_count: int = 800
    """Tokens of a session."""
    is_hinted: bool = True
    repeated_share: float = 0.0
    """Share of the text that is in passages which came before."""
    takes_ngrams: bool = False
    """True if n-grams make the hints, and not the draft."""
    acceptance: float = 0.8
    """Odds of the draft's likeliest token."""
    stated: float | None = None
    """Odds that the draft states; None for the true ones."""
    recorded: tuple[bool | None, ...] = ()
    """For each position of the answer whether the draft's first choice is right, as far as a
    recorded turn tells; None is drawn."""
    right_from: int = 0
    """Position from which the draft is right at all: before, all its tokens are wrong."""
    spread: float = 0.0
    """Odds are ``acceptance`` plus or minus this, and the draft knows which."""
    second_share: float = 0.6
    """Share of the draft's errors in which its second choice is right."""
    has_branches: bool = True
    holds: bool | None = None
    """True if runs wait for hints; None: where processors are shared, since only there it pays."""
    verify: float = 0.025
    """Seconds of each of the verifier's steps, and ``verify_row`` those of each of its rows."""
    verify_row: float = 0.0002
    row_multiple: int = 1
    row_limit: int = 512
    draft: float = 0.003
    """Seconds of a draft's step of one row."""
    draft_row: float = 0.00005
    """Seconds of each row of a draft's step after the first."""
    verify_profile: tuple[tuple[int, float], ...] = ()
    """Row counts and seconds of the verifier's steps, instead of ``verify`` and ``verify_row``."""
    draft_profile: tuple[tuple[int, float], ...] = ()
    """The same of the draft's steps, instead of ``draft`` and ``draft_row``."""
    is_shared: bool = False
    """True if draft and verifier share their processors."""
    jitter: float = 0.05
    """Steps take up to this share longer or shorter."""
    slow_share: float = 0.0
    """Share of the verifier's steps that other work makes five times as long."""
    frozen_at: float = math.inf
    """Time from which the draft stands still."""
    seed: int = 1

    def verify_times(self) -> Sequence[tuple[int, float]]:
        """Return row counts and the seconds of the verifier's steps."""
        return self.verify_profile or [(rows, self.verify + rows * self.verify_row) for rows in PROFILED]

    def draft_times(self) -> Sequence[tuple[int, float]]:
        """Return row counts and the seconds of the draft's steps."""
        return self.draft_profile or [(rows, self.draft + (rows - 1) * self.draft_row) for rows in PROFILED]


class _Passages:
    """Draws tokens at random, or from a passage that came before."""

    def __init__(self, share: float, draw: random.Random) -> None:
        self._odds = share / (_PASSAGE * (1 - share)) if share else 0.0
        self._draw = draw
        self._source = self._left = 0

    def next_token(self, tokens: Sequence[int]) -> int:
        if not self._left and self._odds and len(tokens) > _PASSAGE and self._draw.random() < self._odds:
            self._source, self._left = self._draw.randrange(len(tokens) - _PASSAGE), _PASSAGE
        if not self._left:
            return self._draw.randrange(50_000)
        self._left -= 1
        self._source += 1
        return tokens[self._source - 1]


def _recorded_at(scenario: Scenario, index: int) -> bool | None:
    return scenario.recorded[index] if 0 <= index < len(scenario.recorded) else None


class Text:
    """The tokens that the target chooses in a session, and what the draft says of them."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        draw = random.Random(seed)
        copied = _Passages(scenario.repeated_share, draw)
        self.tokens: list[int] = []
        self._said: list[tuple[bool, bool, float]] = []
        for position in range(PROMPT + scenario.token_count + 2 * MOST_TOKENS):
            odds = min(1.0, max(0.0, scenario.acceptance + scenario.spread * draw.choice([-1, 1])))
            first, second = draw.random() < odds, draw.random() < scenario.second_share
            if (known := _recorded_at(scenario, position - PROMPT)) is not None:
                first = known
            is_right = position >= PROMPT + scenario.right_from
            self.tokens.append(copied.next_token(self.tokens))
            said = odds if scenario.stated is None else scenario.stated
            self._said.append((first and is_right, second and is_right, said))
        self._second_share = scenario.second_share

    def choices(self, length: int, path: Sequence[int]) -> list[tuple[int, float]]:
        """Return the draft's two likeliest tokens after ``length`` right tokens and a path, with
        their odds. After a wrong path all are wrong."""
        position = length + len(path)
        first, second, odds = self._said[position]
        follows = list(path) == self.tokens[length:position]
        right, wrong = self.tokens[position], [50_000 + 2 * position, 50_001 + 2 * position]
        likeliest = right if follows and first else wrong[0]
        other = right if follows and second and not first else wrong[1]
        return [(likeliest, odds), (other, (1 - odds) * self._second_share)]
