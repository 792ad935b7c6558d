"""The n-gram index against brute force, and its bounds."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import ngrams
from slipstream.ngrams import NgramIndex

KINDS: list[Callable[[Sequence[int]], Sequence[int]]] = [list, lambda tokens: array("q", tokens)]


def brute_force(followed: list[int], tokens: list[int]) -> tuple[int, int] | None:
    """The latest of the best-agreeing ends among the last 16 occurrences of the last three
    tokens."""
    ends = [end for end in range(3, len(followed)) if followed[end - 3 : end] == tokens[-3:]][-16:]
    if len(tokens) < 3 or not ends:
        return None

    def agreement(end: int) -> int:
        most = min(32, end, len(tokens))
        return next((n for n in range(most) if followed[end - 1 - n] != tokens[-1 - n]), most)

    best = max(reversed(ends), key=agreement)
    return best, agreement(best)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    length=st.integers(1, 600),
    ids=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 600), max_size=4),
    kind=st.sampled_from(KINDS),
)
def test_a_look_up_equals_brute_force_however_the_tokens_came(
    seed: int, length: int, ids: int, cuts: list[int], kind: Callable[[Sequence[int]], Sequence[int]]
) -> None:
    tokens = random.Random(seed).choices(range(ids), k=length)
    index = NgramIndex()
    for cut in [*sorted(c for c in cuts if c < len(tokens)), len(tokens)]:
        index.follow(kind(tokens[:cut]))
    assert index.locate(kind(tokens), kind(tokens)) == brute_force(tokens, tokens)
    assert index.length == len(tokens)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=300), st.lists(st.integers(0, 2), max_size=40))
def test_other_tokens_are_looked_up_in_the_followed_ones(followed: list[int], tokens: list[int]) -> None:
    index = NgramIndex()
    index.follow(followed)
    assert index.locate(followed, tokens) == brute_force(followed, tokens)


def test_a_continuation_has_at_most_the_length_asked_for() -> None:
    tokens = [1, 2, 3, 40, 41, 42, 43, 1, 2, 3]
    assert NgramIndex().find(tokens, 2) == ((40, 41), 3)
    assert NgramIndex().find([*tokens[:-1], 9], 2) is None


def test_a_continuation_that_reaches_the_end_repeats_itself() -> None:
    tokens = [9, 1, 2, 3, 1, 2, 3]
    assert NgramIndex().find(tokens, 8) == ((1, 2, 3, 1, 2, 3, 1, 2), 3)


def test_an_index_that_was_cleared_follows_another_sequence() -> None:
    index = NgramIndex()
    assert index.find([1, 2, 3, 4, 9, 1, 2, 3], 2) == ((4, 9), 3)
    index.clear()
    assert index.find([1, 2, 3, 7, 7, 7, 7, 7, 1, 2, 3], 2) == ((7, 7), 3)


@pytest.mark.parametrize("chunk", [1, 60, 1000])
def test_the_oldest_tokens_are_forgotten_beyond_the_window(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "_WINDOW", 256)
    index, tokens, rng = NgramIndex(), array("q"), random.Random(5)
    while len(tokens) < 3000:
        tokens.extend(rng.randrange(10**6) for _ in range(chunk))
        index.follow(tokens)
        assert len(index._links) <= 256
    for start in (len(tokens) - 20, len(tokens) - 100):
        found = index.locate(tokens, tokens[start : start + 6])
        assert found == (start + 6, 6)
    assert index.locate(tokens, tokens[10:16]) is None


def test_tokens_whose_hashes_meet_do_not_agree() -> None:
    rng, followed = random.Random(3), list(range(3))
    wanted = ngrams._hash(*followed)
    while True:
        other = [rng.randrange(2**31) for _ in range(3)]
        if ngrams._hash(*other) == wanted:
            break
    index = NgramIndex()
    index.follow([*followed, 8])
    assert index.locate([*followed, 8], other) is None
    assert index.locate([*followed, 8], followed) == (3, 3)
