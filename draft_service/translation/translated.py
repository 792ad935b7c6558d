"""The door of a draft with another vocabulary: text goes in, hints come out, both re-encoded.

::

    target's tokens --> text --> draft's tokens: stable | may still change
                                                   |          |
                                                committed  remainder of `CommittedText`
    target's tokens <-- text <-- draft's guesses after both
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from draft_service.committed import NO_REMAINDER, CommittedText, Remainder
from draft_service.door import Start, Telling, Work
from draft_service.lines import GuessLimits
from draft_service.translation.guesses import translate_guess
from draft_service.translation.respelling import Respelling, incomplete_end
from draft_service.translation.vocabularies import Vocabularies
from slipstream.engine.errors import SequenceTooShortError
from slipstream.engine.hinting.hints import MOST_TOKENS, Hint

_SNAPSHOTS = 32
"""States of a text that a hint may refer to. A job is behind its caller by a commit or two."""

_EMPTY = "\n"
"""Text that the draft reads where the target's tokens have none."""

_SPARE = 1.25
"""A fixed length asks for so many times the draft's tokens that it has on average."""


class _Known:
    """A text's remainder: bytes, and the draft's tokens of them as they are now."""

    def __init__(self, vocabularies: Vocabularies, tokens: Sequence[int], data: bytes) -> None:
        self.tokens = tuple(tokens)
        self._data, self._vocabularies = data, vocabularies

    def is_said_by(self, path: Sequence[int]) -> bool:
        return self.length_said(path) is not None

    def length_said(self, path: Sequence[int]) -> tuple[int, int] | None:
        """Return how many tokens of a guess the remainder covers, and how many bytes of the token
        after them. None if the guess does not begin with the remainder."""
        if tuple(path[: len(self.tokens)]) == self.tokens:
            return len(self.tokens), 0
        left = self._data
        for index, token in enumerate(path):
            piece = self._vocabularies.draft.bytes_of(token)
            if len(piece) > len(left):
                return (index, len(left)) if piece.startswith(left) else None
            if not left.startswith(piece):
                return None
            left = left[len(piece) :]
        return (len(path), 0) if not left else None


class _Snapshot(NamedTuple):
    draft_length: int
    """Committed tokens of the draft."""
    target_length: int
    known: _Known
    is_whole: bool
    """True if the text ends after a whole character."""


class Translation:
    """One handle's text, in the target's tokens and in the draft's."""

    def __init__(self, vocabularies: Vocabularies) -> None:
        self.vocabularies = vocabularies
        self.tokens = array("i")
        """The target's tokens."""
        self.respelling = Respelling(vocabularies.draft)
        self.snapshots: deque[_Snapshot] = deque(maxlen=_SNAPSHOTS)
        self.telling: TranslatedTelling | None = None
        """The newest one. Others change nothing any more."""
        self.rule_ends: frozenset[int] = frozenset()
        """End tokens of the newest rule."""
        self._ends = array("i")
        """Length of the text after each of the target's tokens."""
        self._opening = vocabularies.draft.opening

    def state(self, base_length: int, tail: Sequence[int]) -> None:
        """Keep the first ``base_length`` tokens, and add others."""
        if base_length < len(self.tokens):
            del self.tokens[base_length:], self._ends[base_length:]
            pieces = [self._piece(token) for token in self.tokens[max(0, base_length - 4) :]]
            self.respelling.go_back(self._ends[-1] if base_length else 0, incomplete_end(pieces))
        self.snapshots.clear()
        if not self.tokens and tail and self._opening.encode() != self._piece(tail[0]):
            self.respelling.fill(self._opening)
        self._read(tail)
        if not self.respelling.text:
            self.respelling.fill(_EMPTY)
        self.settle()

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Add tokens, and return the draft's that are stable by them."""
        self._read(tokens)
        return self.settle()

    def settle(self) -> list[int]:
        """Spell what was read, and note where both vocabularies are."""
        added = self.respelling.settle()
        counts = len(self.respelling.tokens), len(self.tokens)
        self.snapshots.append(_Snapshot(*counts, self._known(), not self.respelling.half_character))
        return added

    @property
    def ratio(self) -> float:
        """The draft's tokens for each of the target's."""
        return (len(self.respelling.tokens) + len(self.respelling.rest) + 8) / (len(self.tokens) + 8)

    def position_of(self, position: int) -> int:
        """Return about the draft's position of a target's: the two are proportional."""
        length = len(self.respelling.tokens) + len(self.respelling.rest)
        return max(0, length + math.ceil((position - len(self.tokens)) * self.ratio))

    def recent(self, target_length: int) -> str:
        """Return the end of the text of the first ``target_length`` tokens, since the last special
        token."""
        end = self._ends[target_length - 1] if target_length else 0
        index = target_length
        while index > max(0, target_length - _RECENT) and self.tokens[index - 1] not in self._special:
            index -= 1
        begin = self._ends[index - 1] if index else len(self._opening)
        return self.respelling.text[min(begin, end) : end]

    @property
    def _special(self) -> dict[int, str]:
        return self.vocabularies.target.special

    def _known(self) -> _Known:
        respelling = self.respelling
        data = respelling.text[respelling.place :].encode() + respelling.half_character
        return _Known(self.vocabularies, respelling.rest, data)

    def _piece(self, token: int) -> bytes:
        return self.vocabularies.piece(token, self.rule_ends)

    def _read(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        for token in tokens:
            self._ends.append(self.respelling.read(self._piece(token)))


_RECENT = 24
"""Target's tokens before a guess that are spelt again with it."""


class TranslatedTelling:
    """One start at a handle, and what follows it."""

    def __init__(self, translation: Translation, start: Start, context_length: int) -> None:
        self._translation, self._start, self._context_length = translation, start, context_length
        self._text = CommittedText(0, (), start.price)
        self._length = start.length

    @property
    def length(self) -> int:
        """The committed length, in the target's tokens."""
        return self._length

    def begin(self) -> Work:
        """Take the start in, and return it in the draft's tokens."""
        start, translation = self._start, self._translation
        translation.telling = self
        translation.rule_ends = frozenset(start.rule.end_token_ids)
        translation.state(start.base_length, start.tail)
        self._text.extend([*translation.respelling.tokens], self._remainder)
        self._text.price = start.price / translation.ratio
        rule = translation.vocabularies.rule(
            start.rule,
            first_end=translation.position_of(start.rule.first_end_position),
            first_generated=translation.position_of(start.rule.first_generated_position),
        )
        return Work(self._text, rule, self._limits())

    def add(self, position: int, tokens: Sequence[int], price: float) -> bool:
        """Take in tokens of the target. Returns True if their text contradicts the draft's
        guess."""
        if position > self._length:
            raise SequenceTooShortError(
                f"tokens from position {position} on were committed, but only {self._length} are known; start again",
                cached_length=self._length,
            )
        translation, news = self._translation, tokens[self._length - position :]
        self._length += len(news)
        if translation.telling is not self or not news:
            return False
        start, guess = self._text.guess
        expected = guess[self._text.length - start :]
        added = translation.add(news)
        self._text.price = price / translation.ratio
        remainder = self._remainder
        self._text.extend(added, remainder)
        return expected[: len(added)] != tuple(added) or not remainder.is_said_by(expected[len(added) :])

    def hint(self, hint: Hint) -> Hint | None:
        """Return a guess in the target's tokens, from what was committed when it was made; None if
        it says nothing there."""
        translation = self._translation
        for snapshot in reversed(translation.snapshots):
            if snapshot.draft_length != hint.start or translation.telling is not self:
                continue
            covered = snapshot.known.length_said(hint.tokens)
            if covered is not None:
                return self._translated(hint, snapshot, *covered) if snapshot.is_whole else None
        return None

    def _translated(self, hint: Hint, snapshot: _Snapshot, count: int, byte_count: int) -> Hint | None:
        length = snapshot.target_length
        before = self._translation.recent(length)
        tokens, survivals = translate_guess(
            self._translation.vocabularies,
            before,
            hint.tokens[count:],
            hint.survivals[count:],
            byte_count,
            self._start.rule.end_token_ids,
        )
        most = min(MOST_TOKENS, self._start.until_length - length)
        if not tokens or most <= 0:
            return None
        return Hint(length, tokens[:most], survivals[:most], hint.source, hint.source_id, length, hint.next_due)

    @property
    def _remainder(self) -> Remainder:
        known = self._translation.snapshots[-1].known
        return known if known.tokens else NO_REMAINDER

    def _limits(self) -> GuessLimits:
        start, translation = self._start, self._translation
        rest, ratio = len(translation.respelling.rest), translation.ratio
        least = min(MOST_TOKENS, rest + 4 + math.ceil(start.least_length * ratio * _SPARE)) if start.least_length else 0
        until = translation.position_of(start.length + math.ceil((start.until_length - start.length) * 1.5) + 8)
        return GuessLimits(max(self._text.length + rest + 1, min(until, self._context_length + 1)), least)


class TwoVocabularies:
    """The door of a draft whose callers speak the target's tokens."""

    speaks_draft = False

    def __init__(self, vocabularies: Vocabularies, context_length: int) -> None:
        self.vocabularies = vocabularies
        self.vocabulary_size = 2**31 - 1  # a target's logits may be wider than its tokenizer
        self._context_length = context_length
        self._translations: dict[str, Translation] = {}

    def open(self, handle: str, start: Start) -> Telling:
        """Return the telling of a start. SequenceTooShortError if the handle knows fewer tokens."""
        translation = self._translations.get(handle)
        known = len(translation.tokens) if translation is not None else 0
        if start.base_length > known:
            raise SequenceTooShortError(
                f"base_length is {start.base_length}, but only {known} tokens are known", cached_length=known
            )
        if translation is None:
            translation = self._translations[handle] = Translation(self.vocabularies)
        return TranslatedTelling(translation, start, self._context_length)

    def forget(self, handle: str) -> None:
        """Forget a closed handle's text."""
        self._translations.pop(handle, None)
