"""Requests are routed by what their messages name, with the caller as the only principal."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.processes.routing import ROUTES
from orchestrator.sessions.admission.principal import Principal
from orchestrator.store.rows import OwnerRow
from slipstream.v1 import orchestrator_pb2 as pb

OWNER = OwnerRow("o", "unix:o", "o")
SERVICE = pb.DESCRIPTOR.services_by_name["OrchestratorService"]


class Directory:
    """Records how a session was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def locate(self, session_id: str, principal: str | None) -> OwnerRow:
        self.asked.append((session_id, principal))
        return OWNER

    async def locate_request(self, request_id: str, principal: str, *, listed: bool) -> OwnerRow:
        self.asked.append((request_id, principal, listed))
        return OWNER

    async def locate_fork(self, session_id: str, request_id: str, principal: str) -> OwnerRow:
        self.asked.append((session_id, request_id, principal))
        return OWNER


async def asked(method: str, request: Any, *, operator: bool = False) -> Any:
    directory, caller = Directory(), Principal("alice", operator=operator)
    owner = await ROUTES[f"/{SERVICE.full_name}/{method}"].owner(request, caller, directory)
    assert owner is OWNER
    (call,) = directory.asked
    return call


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_every_method_whose_request_names_a_session_has_a_route(method: str) -> None:
    fields = SERVICE.methods_by_name[method].input_type.fields_by_name
    names_one = "session_id" in fields or "request_id" in fields
    assert (f"/{SERVICE.full_name}/{method}" in ROUTES) == names_one


@pytest.mark.parametrize("operator", [False, True])
async def test_a_session_is_asked_for_in_the_callers_name(operator: bool) -> None:
    requests = {
        "SendMessage": pb.SendMessageRequest(session_id="s", request_id="turn"),
        "WatchTurn": pb.WatchTurnRequest(session_id="s"),
        "CancelTurn": pb.CancelTurnRequest(session_id="s"),
        "GetTurn": pb.GetTurnRequest(session_id="s"),
        "UpdateSession": pb.UpdateSessionRequest(session_id="s"),
        "GetSession": pb.GetSessionRequest(session_id="s"),
        "ExportSession": pb.ExportSessionRequest(session_id="s"),
        "DeleteSession": pb.DeleteSessionRequest(session_id="s"),
        "Chat": pb.ChatRequest(request_id="r", start=pb.StartChat(session_id="s")),
    }
    for method, request in requests.items():
        assert await asked(method, request, operator=operator) == ("s", "alice"), method


async def test_only_operators_ask_for_traces_of_other_tenants() -> None:
    request = pb.GetTurnTracesRequest(session_id="s")
    assert await asked("GetTurnTraces", request) == ("s", "alice")
    assert await asked("GetTurnTraces", request, operator=True) == ("s", None)


async def test_a_retried_request_is_found_by_its_id() -> None:
    assert await asked("Generate", pb.GenerateRequest(request_id="r")) == ("r", "alice", False)
    assert await asked("CreateSession", pb.CreateSessionRequest(request_id="r")) == ("r", "alice", True)
    assert await asked("Chat", pb.ChatRequest(request_id="r", start=pb.StartChat())) == ("r", "alice", True)
    assert await asked("Chat", pb.ChatRequest(request_id="r")) == ("r", "alice", True)
    assert await asked("ForkSession", pb.ForkSessionRequest(session_id="s", request_id="r")) == ("s", "r", "alice")


def test_a_request_without_an_id_could_happen_twice() -> None:
    generate, get = ROUTES[f"/{SERVICE.full_name}/Generate"], ROUTES[f"/{SERVICE.full_name}/GetSession"]
    assert generate.happens_twice(pb.GenerateRequest()) and not generate.happens_twice(
        pb.GenerateRequest(request_id="r")
    )
    assert not get.happens_twice(pb.GetSessionRequest())
