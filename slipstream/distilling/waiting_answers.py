"""Answers that wait for their positions, and which of them a piece of a shard belongs to.

A shard names no prompt, so tokens tell. ::

    answer: begin | tokens
    piece:  begin | tokens of the prompt, and of the answer up to the piece's last position

Answers with one begin lie in the order of their bytes, in which a text stands before all that begin
with it. So a piece finds its answer by halving, however many wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from slipstream.distilling.records import Ints

_TEXT = itemgetter(0)


class Piece(NamedTuple):
    """Consecutive positions of a sequence in a shard, up to the last of its tokens."""

    begin: int
    tokens: Ints
    shard: str


@dataclass(eq=False, slots=True)
class Answer:
    """An answer, and how much of it is in shards."""

    key: str
    begin: int
    """Number of the prompt's tokens."""
    tokens: Ints
    found_count: int = 0
    """Tokens whose positions are in shards: the first ones."""
    shards: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if each of its positions is in a shard."""
        return bool(self.shards) and self.found_count == len(self.tokens)

    def take(self, piece: Piece) -> bool:
        """Return whether a piece has the next positions of this answer. They are then counted."""
        if not self.begin <= piece.begin <= self.begin + self.found_count < len(piece.tokens):
            return False
        said = piece.tokens[self.begin :][: len(self.tokens)]
        if not np.array_equal(said, self.tokens[: len(said)]):
            return False
        self.found_count = len(said)
        if piece.shard not in self.shards:
            self.shards.append(piece.shard)
        return True


class WaitingAnswers:
    """Answers of which positions are missing."""

    def __init__(self) -> None:
        self._unseen: defaultdict[int, list[tuple[bytes, int, Answer]]] = defaultdict(list)
        """Answers without any position, by their begin. Numbers keep equal ones in order."""
        self._begun: list[Answer] = []
        """Answers of which some positions are there: long ones, so there are few."""
        self._count = 0

    def add(self, answer: Answer) -> None:
        """Wait for an answer's positions."""
        self._count += 1
        insort(self._unseen[answer.begin], (answer.tokens.tobytes(), self._count, answer))

    def take(self, piece: Piece) -> Answer | None:
        """Give a piece to an answer whose next positions it has, and return that answer; None if
        there is none. An answer that is whole then waits no more."""
        answer = self._give(piece, lambda each: each.begin < piece.begin)
        if answer is None and (answer := self._pop_unseen(piece)) is not None:
            answer.take(piece)
            self._begun.append(answer)
        if answer is None:  # its turn was run again from the beginning
            answer = self._give(piece, lambda each: each.begin == piece.begin)
        if answer is not None and answer.is_whole:
            self._begun.remove(answer)
        return answer

    def _give(self, piece: Piece, may_take: Callable[[Answer], bool]) -> Answer | None:
        return next((each for each in self._begun if may_take(each) and each.take(piece)), None)

    def _pop_unseen(self, piece: Piece) -> Answer | None:
        """Stop to wait for the answer that begins where a piece does, and of which the piece has
        the first positions. Of several, it is the one with the longest text in common."""
        waiting, said = self._unseen.get(piece.begin, []), piece.tokens[piece.begin :].tobytes()
        at = bisect_left(waiting, said, key=_TEXT)
        if at < len(waiting) and waiting[at][0].startswith(said):
            return waiting.pop(at)[2]
        while at:
            at -= 1
            if said.startswith(text := waiting[at][0]):
                return waiting.pop(at)[2]
            said = _common(text, said)
            at = bisect_right(waiting, said, hi=at, key=_TEXT)
        return None


def _common(one: bytes, other: bytes) -> bytes:
    """Return the text with which both begin."""
    differing = (at for at, (own, others) in enumerate(zip(one, other, strict=False)) if own != others)
    return one[: next(differing, min(len(one), len(other)))]
