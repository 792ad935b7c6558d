"""A growing text in a draft's tokens, without spelling it all again for each piece. Pure."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from draft_service.translation.spelling import Spelling, Spelt, begins_word, stable_count

_UNSTABLE_WORDS = 2
"""Words at the end of a text whose tokens may still change. 1: "don'" and "t" are read as two words
by some vocabularies, and "don't" as one."""

_CUT_TOKENS = 64
"""Tokens between two cuts of a long piece."""


class _Cut(NamedTuple):
    place: int
    """A place in the text."""
    token_count: int
    """Tokens before it."""


class Respelling:
    """A text, and its tokens up to a place after which they may still change."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self.text = ""
        self.tokens = array("i")
        """Tokens that stay as they are however the text goes on."""
        self.rest: list[int] = []
        """Tokens of the text after them, as it is now."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cuts = [_Cut(0, 0)]

    @property
    def place(self) -> int:
        """Place in the text at which `rest` begins."""
        return self._cuts[-1].place

    @property
    def half_character(self) -> bytes:
        """The first bytes of a character whose other bytes have not come."""
        return self._decoder.getstate()[0]

    def read(self, piece: bytes) -> int:
        """Add bytes to the text, and return its length. `settle` spells them."""
        self.text += self._decoder.decode(piece)
        return len(self.text)

    def fill(self, text: str) -> None:
        """Add text that no token of the target stands for."""
        self.text += text

    def settle(self) -> list[int]:
        """Spell what was read, and return the tokens that are stable now and were not before."""
        lead = self._cuts[-2].place if len(self._cuts) > 1 else 0
        spelt, begin, lead = self._spelt(lead)
        text = self.text[lead:]
        count = stable_count(text, spelt, begin, self._spelling.special, _UNSTABLE_WORDS)
        if not self._cut(spelt, begin, count, text):
            count = begin
        added = spelt.tokens[begin:count]
        self.tokens.extend(added)
        self.rest = spelt.tokens[count:]
        return added

    def go_back(self, length: int, half_character: bytes) -> int:
        """Cut the text to a length, with the first bytes of a character after it. Returns how many
        stable tokens are left; `settle` spells the others again."""
        while len(self._cuts) > 1 and self._cuts[-1].place > length:
            self._cuts.pop()
        if len(self._cuts) > 1:  # the words after a cut made it one
            self._cuts.pop()
        self.text = self.text[:length]
        del self.tokens[self._cuts[-1].token_count :]
        self.rest = []
        self._decoder.setstate((half_character, 0))
        return len(self.tokens)

    def _spelt(self, lead: int) -> tuple[Spelt, int, int]:
        """Return the tokens from a lead on, the index of the first that is not stable, and the
        lead. The lead keeps a tokenizer from taking the place for a text's beginning."""
        spelt = self._spelling.encode(self.text[lead:])
        begin = spelt.index_at(self.place - lead)
        if begin is None:  # the tokenizer reaches over the cut: spell what is after it by itself
            return self._spelling.encode(self.text[self.place :]), 0, self.place
        return spelt, begin, lead

    def _cut(self, spelt: Spelt, begin: int, count: int, text: str) -> bool:
        """Cut the text, which is this one's end, before the token at ``count``, and at some words
        before. Returns False if there is no text before it."""
        lead, before = len(self.text) - len(text), len(self.tokens) - begin
        cuts = range(begin + _CUT_TOKENS, count - _CUT_TOKENS, _CUT_TOKENS)
        cut_before = self.place
        for index in [*(each for each in cuts if begins_word(text, spelt, each)), count]:
            place = lead + (spelt.starts[index] if index < len(spelt.starts) else len(text))
            if place > self.place:
                self._cuts.append(_Cut(place, before + index))
        return self.place > cut_before


def incomplete_end(pieces: Sequence[bytes]) -> bytes:
    """Return the bytes at the end of some pieces that are the first of a longer UTF-8 character."""
    tail = b"".join(pieces)[-3:]
    for index in range(len(tail)):
        byte = tail[index]
        width = 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4 if 0xF0 <= byte < 0xF5 else 1
        if width > len(tail) - index and all(0x80 <= each < 0xC0 for each in tail[index + 1 :]):
            return tail[index:]
    return b""
