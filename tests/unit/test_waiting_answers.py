"""Pieces of shards find the answers that they belong to."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from slipstream.distilling.waiting_answers import Answer, Piece, WaitingAnswers

PROMPT = [9, 9, 9]


def answer(key: str, tokens: Sequence[int], begin: int = len(PROMPT)) -> Answer:
    return Answer(key, begin, np.array(tokens, dtype=np.int32))


def piece(tokens: Sequence[int], after: int = 0, shard: str = "1.0", prompt: Sequence[int] = PROMPT) -> Piece:
    """Return what a shard has of an answer from the token ``after`` on."""
    return Piece(len(prompt) + after, np.array([*prompt, *tokens], dtype=np.int32), shard)


def waiting_for(*answers: Answer) -> WaitingAnswers:
    waiting = WaitingAnswers()
    for each in answers:
        waiting.add(each)
    return waiting


def test_pieces_in_any_order_find_the_answers_that_they_are() -> None:
    rng = random.Random(0)
    for _ in range(300):
        texts = [[rng.randrange(2) for _ in range(rng.randrange(1, 6))] for _ in range(rng.randrange(1, 30))]
        begins = [rng.randrange(1, 3) for _ in texts]
        waiting = waiting_for(*(answer("", text, begin) for text, begin in zip(texts, begins, strict=True)))
        for text, begin in sorted(zip(texts, begins, strict=True), key=lambda _: rng.random()):
            found = waiting.take(piece(text, prompt=[9] * begin))
            assert found is not None and found.is_whole
            assert (found.tokens.tolist(), found.begin) == (text, begin)
        assert waiting.take(piece(texts[0], prompt=[9] * begins[0])) is None


def test_a_piece_with_more_than_an_answer_goes_to_the_longest_one_that_it_begins_with() -> None:
    waiting = waiting_for(*(answer(key, text) for key, text in {"": [], "a": [1], "b": [1, 2], "c": [1, 2, 4]}.items()))
    keys = []
    while (found := waiting.take(piece([1, 2, 3, 0]))) is not None:
        assert found.is_whole
        keys.append(found.key)
    assert keys == ["b", "a", ""]


def test_the_parts_of_a_long_answer_are_its_own() -> None:
    long, other = answer("long", [1, 2, 3, 4]), answer("other", [3, 4], begin=len(PROMPT) + 2)
    waiting = waiting_for(long, other)
    assert waiting.take(piece([1, 2, 3, 4], after=2)) is other
    waiting.add(other := answer("other", [3, 4], begin=len(PROMPT) + 2))
    assert waiting.take(piece([1, 2])) is long and not long.is_whole
    assert waiting.take(piece([1, 2, 3, 4], after=3)) is None, "the third token is missing"
    assert waiting.take(piece([1, 2, 3, 4], after=2, shard="2.0")) is long
    assert long.is_whole and long.shards == ["1.0", "2.0"] and not other.shards


@pytest.mark.parametrize("first", [1, 2, 3])
def test_an_answer_whose_turn_was_run_again_is_whole_once_all_of_it_is_there(first: int) -> None:
    waiting = waiting_for(long := answer("long", [1, 2, 3, 4]))
    assert waiting.take(piece([1, 2, 3, 4][:first])) is long and not long.is_whole
    assert waiting.take(piece([1, 2, 3, 4])) is long and long.is_whole
    assert waiting.take(piece([1, 2, 3, 4])) is None


def test_a_piece_is_compared_with_few_answers_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    texts = [[*range(20), *(rng.randrange(1000) for _ in range(5))] for _ in range(2000)]
    waiting = waiting_for(*(answer(str(at), text) for at, text in enumerate(texts)))
    compared: list[Answer] = []
    take = Answer.take

    def counted(self: Answer, piece: Piece) -> bool:
        compared.append(self)
        return take(self, piece)

    monkeypatch.setattr(Answer, "take", counted)
    for text in rng.sample(texts, len(texts)):
        assert waiting.take(piece(text)) is not None
        assert waiting.take(piece([*text[:-1], 1000])) is None
    assert len(compared) == len(texts)
