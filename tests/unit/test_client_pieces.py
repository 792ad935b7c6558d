"""A delta's text in pieces by the origin of its tokens: every character once, however the server
counts bytes."""

from __future__ import annotations

import random

import pytest

from slipstream.client import Delta, Settings
from slipstream.client.turn import Turn
from slipstream.v1 import turn_pb2

ORIGINS = ("draft", "ngram", "recovered", "bonus", "plain")
CHARACTERS = "a \n\té€😀漢:]["


def delta(text: str, counts: list[int], origins: tuple[str, ...] | None = None) -> Delta:
    origins = ORIGINS[: len(counts)] if origins is None else origins
    return Delta(text, tuple(range(len(counts))), token_origins=origins, token_text_byte_counts=tuple(counts))


def test_each_token_has_the_text_that_it_made_certain() -> None:
    assert list(delta("aé€😀", [1, 2, 3, 4]).pieces()) == [
        ("a", "draft"),
        ("é", "ngram"),
        ("€", "recovered"),
        ("😀", "bonus"),
    ]
    held_back = delta("a漢", [1, 0, 0, 3, 0])
    assert list(held_back.pieces()) == [("a", "draft"), ("漢", "bonus")]


def test_a_character_whose_bytes_are_of_two_tokens_is_the_later_ones() -> None:
    assert list(delta("x漢y", [2, 2, 1]).pieces()) == [("x", "draft"), ("漢", "ngram"), ("y", "recovered")]


@pytest.mark.parametrize("seed", range(100))
def test_the_pieces_are_the_text_wherever_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(0, 30)))
    size, count = len(text.encode()), rng.randint(1, 12)
    cuts = sorted(rng.randint(0, size) for _ in range(count - 1))
    counts = [right - left for left, right in zip([0, *cuts], [*cuts, size], strict=True)]
    pieces = list(delta(text, counts, tuple(rng.choice(ORIGINS) for _ in counts)).pieces())
    assert "".join(piece for piece, _ in pieces) == text
    assert all(origin in ORIGINS for _, origin in pieces)


@pytest.mark.parametrize(
    ("counts", "origins"),
    [([], ()), ([], ("draft", "plain")), ([2, 2], ("draft",)), ([1, 1], None), ([9, 9], None), ([5, -1], None)],
    ids=["an older server", "no counts", "too few origins", "too few bytes", "too many bytes", "a negative count"],
)
def test_counts_that_cannot_be_right_leave_the_text_whole(counts: list[int], origins: tuple[str, ...] | None) -> None:
    assert list(delta("a漢", counts, origins).pieces()) == [("a漢", "")]
    assert list(delta("", [], ()).pieces()) == []


def event(offset: int, tokens: list[int]) -> turn_pb2.TurnEvent:
    """Tokens 0 to 9, each with a text of as many bytes as its number says, but for 9, whose text
    the end brings."""
    origins = list(map(turn_pb2.TokenOrigin.ValueType, (1 + token % 5 for token in tokens)))
    message = turn_pb2.TurnDelta(
        text="".join("x" * (token % 9) for token in tokens),
        token_ids=tokens,
        token_offset=offset,
        token_origins=origins,
        token_text_byte_counts=[token % 9 for token in tokens],
    )
    return turn_pb2.TurnEvent(turn=1, delta=message)


def test_a_stream_that_begins_again_tells_each_tokens_origin_once() -> None:
    turn = Turn("s", 1)
    first, again = turn.take_event(event(0, [0, 1, 2, 3])), None
    turn.begin_stream()
    again = turn.take_event(event(0, list(range(10))))
    assert first is not None and again is not None
    assert first.token_origins == ORIGINS[:4] and again.token_origins == ("plain", *ORIGINS)
    assert again.token_text_byte_counts == (4, 5, 6, 7, 8, 0)
    assert next(iter(again.pieces())) == ("xxxx", "plain")
    turn.take_event(turn_pb2.TurnEvent(turn=1, finished=turn_pb2.TurnFinished(text="end")))
    assert turn.result.text == "x" * sum(range(9)) + "end"


def test_origins_are_asked_for_only_where_they_are_wanted() -> None:
    assert Settings(token_origins=True).message().token_origins
    assert not Settings().message().HasField("token_origins")


def test_an_origin_of_a_newer_server_is_not_said() -> None:
    message = turn_pb2.TurnDelta.FromString(
        turn_pb2.TurnDelta(text="ab", token_ids=[1, 2], token_text_byte_counts=[1, 1]).SerializeToString()
        + b"\x32\x02\x63\x02"  # token_origins: 99, 2
    )
    taken = Turn("s", 1).take_event(turn_pb2.TurnEvent(turn=1, delta=message))
    assert taken is not None
    assert list(taken.pieces()) == [("a", ""), ("b", "ngram")]
