"""When a lost call is tried again: within the deadline, within the time for reconnecting, and never
one that was refused."""

from __future__ import annotations

import pytest

from slipstream.client import requests
from slipstream.client.attempts import Attempts, Contact
from slipstream.client.watching import Watching
from slipstream.errors import Code
from slipstream.rpc.status import PeerError, StreamLostError
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import turn_pb2

LOST = PeerError(Code.UNAVAILABLE, "UNAVAILABLE", "socket closed")


REMOVED = PeerError(Code.UNKNOWN, "UNKNOWN", "Stream removed (Socket closed)")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(contact: Contact, timeout: float | None = None) -> tuple[Attempts, Clock]:
    clock = Clock()
    return Attempts(contact, timeout, clock, jitter=lambda: 1.0), clock


def test_a_lost_server_is_called_again_with_growing_delays_until_the_time_for_it_is_over() -> None:
    told: list[PeerError] = []
    tries, clock = attempts(Contact(reconnect=10.0, on_lost=told.append, reached=True))
    delays: list[float] = []

    def lose_again_and_again() -> None:
        while True:
            delays.append(tries.delay_after(LOST))
            clock.now += delays[-1]

    with pytest.raises(PeerError, match="socket closed"):
        lose_again_and_again()
    assert delays[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(delays) == 2.0
    assert 8.0 < sum(delays) <= 10.0
    assert told == [LOST]
    tries.note_answer()
    assert tries.delay_after(StreamLostError("again")) == 0.05
    assert len(told) == 2


def test_a_server_that_was_never_there_is_not_waited_for_but_one_that_is_not_ready_is() -> None:
    with pytest.raises(PeerError, match="socket closed"):
        attempts(Contact(reconnect=10.0))[0].delay_after(LOST)
    not_ready = PeerError(Code.UNAVAILABLE, "NOT_READY", "the verifier is awaited", retry_after=1.5)
    assert attempts(Contact(reconnect=10.0))[0].delay_after(not_ready) == 1.5


def test_a_refusal_is_final() -> None:
    with pytest.raises(PeerError, match="busy"):
        attempts(Contact(reconnect=10.0, reached=True))[0].delay_after(
            PeerError(Code.FAILED_PRECONDITION, "SESSION_BUSY", "busy")
        )


def test_no_attempt_is_made_past_the_deadline() -> None:
    tries, clock = attempts(Contact(reconnect=10.0, reached=True), timeout=1.0)
    clock.now += 0.75
    assert tries.remaining() == pytest.approx(0.25)
    tries.delay_after(LOST)
    clock.now += 0.2
    with pytest.raises(PeerError) as caught:
        tries.delay_after(LOST)
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert attempts(Contact(1.0), float("inf"))[0].remaining() is None


def event(**fields: object) -> turn_pb2.TurnEvent:
    return turn_pb2.TurnEvent(turn=2, **fields)


def test_a_lost_message_is_sent_again_until_its_turn_is_known_and_then_the_turn_is_watched() -> None:
    message = requests.send_message("s", "hello", None, None, None)
    watching = Watching(message, attempts(Contact(10.0))[0])
    assert watching.request() == message
    assert len(message.request_id) == 32
    watching.take_response(pb.SendMessageResponse(event=event(started={"session_id": "s"})))
    watching.take_response(pb.SendMessageResponse(event=event(delta={"token_ids": [5, 6], "text": "xy"})))
    assert watching.request() == pb.WatchTurnRequest(session_id="s", turn=2, after_token_count=2)
    assert watching.cancellations() == [pb.CancelTurnRequest(session_id="s", turn=2)]


def test_lost_choices_are_asked_for_again_each_from_its_own_position() -> None:
    request = requests.generate([1, 2], None, "mine", choice_count=3)
    watching = Watching(request, attempts(Contact(10.0))[0])
    for index in (0, 2):
        started = event(started={"session_id": f"s{index}"})
        watching.take_response(pb.GenerateResponse(event=started, choice_index=index))
    assert not watching.known
    watching.take_response(pb.GenerateResponse(event=event(delta={"token_ids": [5]}), choice_index=2))
    again = watching.request()
    assert isinstance(again, pb.GenerateRequest)
    assert (again.request_id, list(again.after_token_counts)) == ("mine", [0, 0, 1])
    assert [request.session_id for request in watching.cancellations()] == ["s0", "s2"]


def test_a_mere_watcher_owns_no_turn() -> None:
    watching = Watching(pb.WatchTurnRequest(session_id="s", turn=2), attempts(Contact(10.0))[0])
    assert not watching.owned
    assert watching.request_id == ""


def test_a_connection_that_closes_under_the_first_call_is_made_again() -> None:
    tries, _ = attempts(Contact(reconnect=10.0))
    assert tries.delay_after(REMOVED) == 0.05
    assert tries.reached
    with pytest.raises(PeerError, match="a fault"):
        attempts(Contact(reconnect=10.0))[0].delay_after(PeerError(Code.UNKNOWN, "UNKNOWN", "a fault of the server"))
