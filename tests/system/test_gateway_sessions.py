"""Sessions over HTTP are those of the contract: a gateway, which is a real process, in front of
real services."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices
from slipstream.client import Client, Settings
from tests.gateway_process import Answer, GatewayProcess, gateway_process
from tests.system.conftest import LASTING, PAPER_PAIR

pytestmark = pytest.mark.essential

SESSIONS = "/slipstream/v1/sessions"
TOKENS = {name: make_token() for name in ("alice", "bob")}


@pytest.fixture(scope="module")
def services() -> Iterator[LocalServices]:
    with LocalServices(PAPER_PAIR) as local:
        yield local


@pytest.fixture
def session_id(gateway: GatewayProcess) -> Iterator[str]:
    created = gateway.send(SESSIONS, {"metadata": {"title": "a test"}})
    session_id = created.body["session"]["id"]
    yield session_id
    gateway.send(f"{SESSIONS}/{session_id}", method="DELETE")


def turn_events(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, whose end is marked."""
    assert answer.status == 200, answer.body
    *events, end = [line.removeprefix("data: ") for line in answer.body.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(event)["event"] for event in events]


def token_ids(events: list[dict[str, Any]]) -> list[int]:
    return [token for event in events for token in event.get("delta", {}).get("tokenIds", [])]


def test_a_turn_over_http_has_the_tokens_that_grpc_has(
    gateway: GatewayProcess, grpc_client: Client, session_id: str
) -> None:
    settings = {"sampling": {"temperature": 1.0, "seed": "9007199254740993"}, "maxTokenCount": 20, "tokenOrigins": True}
    events = turn_events(gateway.send(f"{SESSIONS}/{session_id}/messages", {"content": "1 2", "settings": settings}))
    other = grpc_client.create_session()
    expected = other.send("1 2", Settings(temperature=1.0, seed=9007199254740993, max_token_count=20)).wait()
    assert token_ids(events) == list(expected.token_ids)
    assert events[0]["started"]["seed"] == "9007199254740993"  # larger than JavaScript's numbers
    assert sum(len(event["delta"]["tokenOrigins"]) for event in events if "delta" in event) == len(expected.token_ids)
    assert events[-1]["finished"]["usage"]["generatedTokenCount"] == len(expected.token_ids)
    assert gateway.send(f"{SESSIONS}/{session_id}/export").body == grpc_client.export_session(session_id)
    asked = gateway.send(f"{SESSIONS}/{session_id}/turns/1").body
    assert (asked["content"], asked["settings"]["maxTokenCount"]) == ("1 2", 20)
    traced = gateway.send(f"{SESSIONS}/{session_id}/traces?turn_count=2").body["turns"]
    assert [turn["turn"] for turn in traced] == [1]


def test_a_turn_is_watched_from_a_position_and_goes_on_unwatched_until_it_is_cancelled(
    gateway: GatewayProcess, grpc_client: Client, session_id: str
) -> None:
    with grpc_client.get_session(session_id) as session:
        reply = session.send("1 2", LASTING)
        deltas, seen = reply.deltas(), list[int]()
        while len(seen) < 4:
            seen += next(deltas).token_ids
        assert gateway.send(f"{SESSIONS}/{session_id}").body["session"]["runningTurn"] == 1
        assert gateway.send(f"{SESSIONS}/{session_id}/turns/1/cancel", {}).body == {}
    events = turn_events(gateway.send(f"{SESSIONS}/{session_id}/turns/1/events?after_token_count=1"))
    assert events[-1]["finished"]["finishReason"] == "FINISH_REASON_CANCELLED"
    assert token_ids(events)[: len(seen) - 1] == seen[1:]
    assert events[1]["delta"]["tokenOffset"] == 1


def test_sessions_are_listed_forked_and_deleted(gateway: GatewayProcess, session_id: str) -> None:
    fork = gateway.send(f"{SESSIONS}/{session_id}/fork", {"afterTurn": 0}).body["session"]
    assert fork["metadata"] == {"title": "a test"}
    renamed = gateway.send(f"{SESSIONS}/{fork['id']}", {"metadata": {"title": "a fork"}}, method="PATCH")
    assert renamed.body["session"]["metadata"] == {"title": "a fork"}
    listed = [session["id"] for session in gateway.send(f"{SESSIONS}?page_size=2").body["sessions"]]
    assert listed == [fork["id"], session_id]
    assert gateway.send(f"{SESSIONS}/{fork['id']}", method="DELETE").status == 200
    gone = gateway.send(f"{SESSIONS}/{fork['id']}")
    assert (gone.status, gone.error["code"]) == (404, "SESSION_NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("messages", {"content": ""}, "content"),
        ("messages", {"content": "1", "settings": {"sampling": {"temperature": -1}}}, "settings.sampling.temperature"),
        ("messages", {"content": "1", "colour": "red"}, "colour"),
        ("messages", {"content": 7}, "content"),
        ("fork", {"session_id": "0" * 16}, "session_id"),
        ("fork", {"afterTurn": "many"}, "afterTurn"),
    ],
)
def test_a_wrong_field_is_refused_by_the_contracts_name(
    gateway: GatewayProcess, session_id: str, path: str, body: dict[str, Any], named: str
) -> None:
    refused = gateway.send(f"{SESSIONS}/{session_id}/{path}", body)
    assert refused.status == 400
    assert named in refused.error["message"]


def test_a_body_that_is_no_object_is_refused(gateway: GatewayProcess) -> None:
    assert gateway.send(SESSIONS, b"[1]").status == 400
    assert gateway.send(SESSIONS, b"{}", {"content-type": "text/plain"}).status == 400


def test_a_session_of_another_principal_is_not_found(tmp_path: Path) -> None:
    kept = [
        f'[[principals]]\nname = "{name}"\ntokens = [{{ id = "{hashed.id}", salt = "{hashed.salt}", '
        f'sha256 = "{hashed.sha256}" }}]'
        for name, (_, hashed) in TOKENS.items()
    ]
    (tmp_path / "access.toml").write_text("\n".join(kept))
    guarded = dataclasses.replace(PAPER_PAIR, orchestrator_flags=["--access", str(tmp_path / "access.toml")])
    alice, bob = ({"authorization": f"Bearer {token}"} for token, _ in TOKENS.values())
    with LocalServices(guarded) as services, gateway_process(services.orchestrator_address) as gateway:
        session_id = gateway.send(SESSIONS, {}, alice).body["session"]["id"]
        for path in ("", "/export", "/traces", "/turns/1", "/turns/1/events"):
            assert gateway.send(f"{SESSIONS}/{session_id}{path}", headers=bob).error["code"] == "SESSION_NOT_FOUND"
        assert gateway.send(f"{SESSIONS}/{session_id}/messages", {"content": "1"}, bob).status == 404
        assert gateway.send(f"{SESSIONS}/{session_id}", headers=bob, method="DELETE").status == 404
        assert gateway.send(SESSIONS, headers=bob).body == {}
        assert gateway.send(SESSIONS).status == 401
        assert gateway.send(f"{SESSIONS}/{session_id}", headers=alice).status == 200


def test_browsers_get_the_page_and_other_clients_get_json(gateway: GatewayProcess) -> None:
    page = gateway.send("/", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
    assert "<script" in page.body and "://" not in page.body  # nothing comes from elsewhere
    assert gateway.send("/page/page.js").headers["content-type"].startswith("text/javascript")
    assert gateway.send("/page/other.js").status == 404
    assert gateway.send("/", headers={"accept": "application/json"}).body["openapi"] == "/openapi.json"
