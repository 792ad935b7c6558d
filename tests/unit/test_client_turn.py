"""A turn's events from streams that break anywhere, repeat and leave out: every token and character
once, or none."""

from __future__ import annotations

import random

import pytest

from slipstream.client.results import TokenLogprobs
from slipstream.client.turn import Turn
from slipstream.errors import Code, FieldViolation, InvalidFieldsError
from slipstream.rpc.status import PeerError, StreamLostError, status_of
from slipstream.v1 import sampling_pb2, turn_pb2


def started(turn: int = 1, session_id: str = "s") -> turn_pb2.TurnEvent:
    return turn_pb2.TurnEvent(turn=turn, started=turn_pb2.TurnStarted(session_id=session_id, seed=7))


def delta(offset: int, tokens: list[int], text: str) -> turn_pb2.TurnEvent:
    logprobs = [sampling_pb2.TokenLogprobs(token_id=token) for token in tokens]
    message = turn_pb2.TurnDelta(text=text, token_ids=tokens, token_offset=offset, logprobs=logprobs)
    return turn_pb2.TurnEvent(turn=1, delta=message)


def finished(text: str = "") -> turn_pb2.TurnEvent:
    return turn_pb2.TurnEvent(turn=1, finished=turn_pb2.TurnFinished(finish_reason=3, text=text))


TOKENS = list(range(100, 160))


def text_after(count: int) -> str:
    """Text lags behind tokens by up to two."""
    return "".join(f"<{token}>" for token in TOKENS[: max(0, count - count % 3)])


def stream(rng: random.Random, start: int) -> list[turn_pb2.TurnEvent]:
    """All that a server tells from a position on, in deltas of random lengths."""
    events, at = [started()], start
    while at < len(TOKENS):
        end = min(len(TOKENS), at + rng.randint(1, 9))
        events.append(delta(at, TOKENS[at:end], text_after(end)[len(text_after(at)) :]))
        at = end
    return [*events, finished("held back")]


@pytest.mark.parametrize("seed", range(50))
def test_streams_that_break_anywhere_give_each_token_and_character_once(seed: int) -> None:
    rng = random.Random(seed)
    turn, pieces = Turn(), []
    while not turn.ended:
        turn.begin_stream()
        start = rng.choice((turn.token_count, turn.token_count, 0))  # a server may begin again
        events = stream(rng, start)
        for event in events if rng.random() < 0.2 else events[: rng.randint(0, len(events))]:
            if (new := turn.take_event(event)) is not None:
                pieces.append(new)
    assert turn.result.token_ids == TOKENS
    assert [token for piece in pieces for token in piece.token_ids] == TOKENS
    assert [entry.token_id for entry in turn.result.logprobs] == TOKENS
    assert turn.result.text == "".join(piece.text for piece in pieces) == text_after(len(TOKENS)) + "held back"
    assert (turn.result.session_id, turn.result.turn, turn.result.seed) == ("s", 1, 7)


def test_watching_from_a_position_has_what_comes_after_it() -> None:
    turn = Turn("s", 1, after_token_count=30)
    for event in stream(random.Random(0), 30):
        turn.take_event(event)
    assert turn.result.token_ids == TOKENS[30:]
    assert turn.token_count == len(TOKENS)


def test_a_gap_is_a_lost_stream() -> None:
    turn = Turn()
    turn.take_event(started())
    turn.take_event(delta(0, [1, 2], "ab"))
    with pytest.raises(StreamLostError, match="2 to 3"):
        turn.take_event(delta(3, [4], "d"))
    turn.begin_stream()
    turn.take_event(delta(2, [3], "c"))
    assert turn.result.text == "abc"


def test_another_turn_in_the_place_of_ours_is_told_not_mixed_in() -> None:
    turn = Turn("s")
    turn.take_event(started(turn=4))
    turn.begin_stream()
    with pytest.raises(PeerError) as caught:
        turn.take_event(started(turn=5))
    assert caught.value.reason == "TURN_LOST"


def test_a_turns_end_tells_its_stop_string_and_what_chose_its_tokens() -> None:
    for stop in (None, "", "END"):
        finished = turn_pb2.TurnFinished(
            finish_reason="FINISH_REASON_STOP_STRING", stop_string=stop, weights_fingerprint="abc", sampling_version=3
        )
        turn = Turn()
        turn.take_event(started())
        turn.take_event(turn_pb2.TurnEvent(turn=1, finished=finished))
        assert turn.result.stop_string == stop
        assert (turn.result.weights_fingerprint, turn.result.sampling_version) == ("abc", 3)


def test_log_probabilities_have_the_bytes_that_the_server_sent() -> None:
    turn = Turn()
    turn.take_event(started())
    plain = sampling_pb2.TokenLogprobs(token_id=1, logprob=-1.0)
    plain.top.add(token_id=2, logprob=-2.0)
    spelt = sampling_pb2.TokenLogprobs(token_id=1, logprob=-1.0, token_bytes=b"\xf0")
    spelt.top.add(token_id=2, logprob=-2.0, token_bytes=b"b")
    spelt.top.add(token_id=3, logprob=-3.0)
    event = turn_pb2.TurnDelta(token_ids=[1, 1], logprobs=[plain, spelt])
    turn.take_event(turn_pb2.TurnEvent(turn=1, delta=event))
    assert turn.result.logprobs == [
        TokenLogprobs(1, -1.0, ((2, -2.0),)),
        TokenLogprobs(1, -1.0, ((2, -2.0), (3, -3.0)), b"\xf0", (b"b", b"")),
    ]


def test_a_failed_turn_keeps_its_text_and_says_all_that_the_server_said() -> None:
    turn = Turn()
    error = status_of(InvalidFieldsError([FieldViolation("prompt", "must be shorter")]))
    failed = turn_pb2.TurnFailed(error=error, text="the rest", usage={"generated_token_count": 3})
    turn.take_event(started())
    turn.take_event(turn_pb2.TurnEvent(turn=1, failed=failed))
    assert turn.ended
    assert turn.result.text == "the rest"
    assert turn.result.generated_token_count == 3
    assert turn.error is not None
    assert (turn.error.code, turn.error.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELDS")
    assert turn.error.violations == (FieldViolation("prompt", "must be shorter"),)
