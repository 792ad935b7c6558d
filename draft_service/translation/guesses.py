"""A draft's guess in the target's tokens. Pure."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Sequence

from draft_service.translation.vocabularies import Vocabularies

_UNSTABLE_TOKENS = 1
"""Tokens at the end of a guess that are not told, because more letters may follow them. Of texts
that end anywhere, 83 to 100 % have no last token that changes as they go on, and 97 to 100 % no
token before it."""


def translate_guess(
    vocabularies: Vocabularies,
    before: str,
    tokens: Sequence[int],
    survivals: Sequence[float],
    said: int,
    target_ends: Sequence[int],
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return a guess in the target's tokens, and their survivals; both empty if it says nothing.

    ``before`` is the end of the text that it follows. ``said`` bytes of its first token are in that
    text already. A token's survival is that of the draft's token which reaches its end.
    """
    plain = next((index for index, token in enumerate(tokens) if token in vocabularies.draft.special), len(tokens))
    text, places = _text_of(vocabularies, tokens[:plain], said)
    closing = _closing(vocabularies, tokens[plain], target_ends) if plain < len(tokens) else None
    spelt = vocabularies.target.encode(before + text)
    begin = spelt.index_at(len(before))
    if begin is None:
        return (), ()
    end = len(spelt.tokens)
    if plain == len(tokens):
        end = max(begin, end - _UNSTABLE_TOKENS)
    found = spelt.tokens[begin:end]
    reached = [bisect_left(places, place - len(before)) for place in spelt.ends[begin:end]]
    odds = [survivals[min(index, plain - 1)] for index in reached]
    if closing is not None:
        found, odds = [*found, closing], [*odds, survivals[plain]]
    return tuple(found), tuple(odds)


def _text_of(vocabularies: Vocabularies, tokens: Sequence[int], said: int) -> tuple[str, list[int]]:
    """Return the text of tokens without its first ``said`` bytes, and its length after each."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, places = "", []
    for token in tokens:
        text += decoder.decode(vocabularies.draft.bytes_of(token)[said:])
        places.append(len(text))
        said = 0
    return text, places


def _closing(vocabularies: Vocabularies, token: int, target_ends: Sequence[int]) -> int | None:
    """Return the target's token for a special one that the draft has guessed: of the same text, or
    the end of a turn; None if there is none."""
    same = vocabularies.special_of(token)
    ends = target_ends or vocabularies.target_ends
    if token in vocabularies.draft_ends and ends and same not in ends:
        return ends[0]
    return same
