"""Requests and responses in protobuf's JSON."""

from __future__ import annotations

import pytest

from slipstream.client import PeerError
from slipstream.client.json_calls import request_from_json, response_as_json
from slipstream.errors import Code
from slipstream.v1 import orchestrator_pb2, turn_pb2


def test_names_may_be_written_in_both_ways_of_protobufs_json() -> None:
    expected = orchestrator_pb2.WatchTurnRequest(session_id="s", turn=2, after_token_count=3)
    assert request_from_json("WatchTurn", {"sessionId": "s", "turn": 2, "afterTokenCount": 3}) == expected
    assert request_from_json("WatchTurn", {"session_id": "s", "turn": "2", "after_token_count": 3.0}) == expected


@pytest.mark.parametrize("given", [{"other": 1}, {"turn": "two"}, {"turn": 2**31}, {"sessionId": 7}, {"turn": [1]}])
def test_an_unknown_field_and_a_wrong_value_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(PeerError) as refused:
        request_from_json("WatchTurn", given)
    assert (refused.value.code, refused.value.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELDS")


def test_a_request_that_can_be_sent_twice_has_a_name() -> None:
    assert request_from_json("CreateSession", {"requestId": "mine"}).request_id == "mine"
    assert request_from_json("CreateSession", {}).request_id != request_from_json("CreateSession", {}).request_id


def test_a_seed_keeps_all_of_its_digits() -> None:
    started = turn_pb2.TurnStarted(seed=2**53 + 1)
    assert response_as_json(started)["seed"] == "9007199254740993"
