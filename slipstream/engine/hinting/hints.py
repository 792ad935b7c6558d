"""A run's hints: which are kept, and what each says about the next tokens. Pure.

Chosen tokens are all tokens of the sequence, with the target's last choice. A hint counts by its
position: if the run has moved past its start, its first tokens must equal the chosen ones, and the
others are what it says about the next tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

MOST_TOKENS = 64
"""Most tokens of a hint."""

MOST_HINTS = 8
"""Hints that a run keeps."""


class Source(Enum):
    """The kind of maker of a hint."""

    DRAFT = 1
    BRANCH = 2
    """A draft's continuation of another choice than its likeliest."""
    NGRAM = 3
    PREDICTION = 4
    """The caller's own text."""
    OTHER = 5
    HEADS = 6
    """Heads on the target's hidden states."""


Maker = tuple[Source, int]
"""A kind and the id of one maker. A draft's branches count as the draft's."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Tokens that the target may choose from position ``start`` on. It raises ValueError if its
    numbers are out of range; the caller checks its token ids."""

    start: int
    tokens: tuple[int, ...]
    survivals: tuple[float, ...]
    """The odds that a token and all before it in the hint are right if the text before ``start`` is
    what its maker assumes."""
    source: Source
    source_id: int = 0
    """The draft's weights, or another maker's id: calibration is by id."""
    length_seen: int = 0
    """Length of the text that the maker knew."""
    next_due: float | None = None
    """Seconds until the maker's next hint should be here; None if none is on its way."""

    def __post_init__(self) -> None:
        if self.start < 0 or self.length_seen < 0:
            raise ValueError("a hint's start and length_seen are at least 0")
        if not 1 <= len(self.tokens) <= MOST_TOKENS:
            raise ValueError(f"a hint has 1 to {MOST_TOKENS} tokens, not {len(self.tokens)}")
        if len(self.survivals) != len(self.tokens):
            raise ValueError("a hint has one survival for each token")
        if not all(0 <= survival <= 1 for survival in self.survivals):
            raise ValueError("a survival is from 0 to 1")
        if self.next_due is not None and not 0 <= self.next_due < float("inf"):
            raise ValueError("next_due is finite and at least 0")

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def maker(self) -> Maker:
        """The maker, for calibration."""
        return (Source.DRAFT if self.source is Source.BRANCH else self.source, self.source_id)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The tokens of a hint that come next in a run."""

    hint: Hint
    tokens: tuple[int, ...]
    odds: tuple[float, ...]
    """Stated odds of each token if all before it are right."""


@dataclass(slots=True)
class _Kept:
    hint: Hint
    odds: tuple[float, ...]
    checked: int
    """Position up to which the hint equals the chosen tokens."""


Judge = Callable[[Maker, float, bool], None]
"""Takes the maker of a token, its stated odds, and whether the target chose it."""


def index_to_drop(hints: Sequence[Hint]) -> int:
    """Return which of too many hints, the oldest first, gives way: the oldest of the maker that has
    most. So no maker crowds out another."""
    counts = Counter([hint.maker for hint in hints])
    most = max(counts.values())
    return next(index for index, hint in enumerate(hints) if counts[hint.maker] == most)


class HintBox:
    """The hints of one run. Chosen tokens only ever grow in a run."""

    def __init__(self, judge: Judge = lambda maker, odds, is_right: None) -> None:
        """``judge`` hears of each token of a hint once the target has chosen at its position, even
        if it was never verified. So calibration needs no rows of its own."""
        self._judge = judge
        self._kept: list[_Kept] = []  # the oldest first
        self._judged: dict[Maker, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, hint: Hint, chosen: Sequence[int]) -> bool:
        """Keep a hint, unless it contradicts the chosen tokens or is used up; return whether it is
        kept. A hint that continues or repeats a kept one of the same maker replaces it. If there
        are too many, the oldest of the maker with most gives way."""
        kept = _Kept(hint, stated_odds(hint.survivals), hint.start)
        if not self._agrees(kept, chosen):
            return False
        for other in self._kept:
            if _continues(hint, other):
                self._kept.remove(other)
                break
        self._kept.append(kept)
        if len(self._kept) > MOST_HINTS:
            del self._kept[index_to_drop([kept.hint for kept in self._kept])]
        return True

    def candidates(self, chosen: Sequence[int]) -> list[Candidate]:
        """Return what the hints say about the tokens after ``chosen``, the newest first. Hints that
        contradict it and hints that are used up are dropped."""
        length = len(chosen)
        self._kept = [kept for kept in self._kept if self._agrees(kept, chosen)]
        candidates = []
        for kept in reversed(self._kept):
            passed = length - kept.hint.start
            if passed >= 0:
                candidates.append(Candidate(kept.hint, kept.hint.tokens[passed:], kept.odds[passed:]))
        return candidates

    def _agrees(self, kept: _Kept, chosen: Sequence[int]) -> bool:
        hint, start = kept.hint, kept.checked
        end = min(hint.end, len(chosen))
        for position in range(start, end):
            index = position - hint.start
            is_right = hint.tokens[index] == chosen[position]
            self._report(kept, index, is_right)
            if not is_right:
                return False
        kept.checked = max(start, end)
        return len(chosen) < hint.end

    def _report(self, kept: _Kept, index: int, is_right: bool) -> None:
        """Judge a token that its maker could not know, after a text that its maker knew. The first
        token of a hint that starts later shows whether the maker's assumption was right."""
        hint, position = kept.hint, kept.hint.start + index
        if position < hint.length_seen or (index == 0 and hint.start > hint.length_seen):
            return
        maker = hint.maker
        if position < self._judged.get(maker, 0):
            return
        self._judged.pop(maker, None)
        self._judged[maker] = position + 1
        if len(self._judged) > MOST_HINTS:
            del self._judged[next(iter(self._judged))]
        self._judge(maker, kept.odds[index], is_right)


def stated_odds(survivals: Sequence[float]) -> tuple[float, ...]:
    """Return the odds of each token if all before it are right. They are at most 1 even if the
    survivals rise."""
    before = [1.0, *survivals[:-1]]
    return tuple([min(1.0, after / first) if first else 0.0 for first, after in zip(before, survivals, strict=True)])


def _continues(hint: Hint, kept: _Kept) -> bool:
    """Return whether a hint says at least what a kept one of the same maker still says."""
    old = kept.hint
    if (hint.source, hint.source_id) != (old.source, old.source_id) or hint.end < old.end:
        return False
    if not (old.start <= hint.start <= kept.checked and hint.start < old.end):
        return False
    skipped = hint.start - old.start
    return hint.tokens[: len(old.tokens) - skipped] == old.tokens[skipped:]
