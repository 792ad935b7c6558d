"""Who a caller is holds in every process: however it is told, and however many processes there
are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from slipstream.client import Client, PeerError, Settings
from slipstream.rpc.status import error_of_call
from slipstream.v1 import orchestrator_pb2 as pb
from tests.system.conftest import paper_tokens
from tests.system.guarded import KINDS, ORCHESTRATOR, SETUPS, Guarded, guarded

PROMPT = [10, 20, 30]
TARGET = "arithmetic:ends=0"
SHORT = {"max_token_count": 5}
_names = map(str, itertools.count())


@pytest.fixture(scope="module", params=list(itertools.product(KINDS, SETUPS)), ids=" by ".join)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    kind, setup = request.param
    with guarded(tmp_path_factory.mktemp("guarded"), kind, setup, TARGET) as started:
        yield started


def fresh(what: str) -> str:
    """A request's name that no other test gives."""
    return f"{what}-{next(_names)}"


def read(answer: Any) -> None:
    """Read a stream to its end: it says that it is refused once it is read."""
    if hasattr(answer, "__next__"):
        list(answer)


def refusal(call: Callable[[], Any]) -> PeerError:
    try:
        read(call())
    except PeerError as error:
        return error
    except grpc.RpcError as error:
        return error_of_call(error)
    raise AssertionError("it was answered")


def sessions_of(client: Client) -> set[str]:
    return {session.session_id for session in client.list_sessions()}


def sent(system: Guarded, client: Client, name: str, session_id: str, request_id: str = "") -> list[Any]:
    request = pb.SendMessageRequest(session_id=session_id, content="hi", request_id=request_id, settings=SHORT)
    responses = client.stub.SendMessage(request, metadata=system.metadata(name), timeout=30)
    return [response.event for response in responses]


def opened(system: Guarded, client: Client, name: str, start: pb.StartChat, request_id: str = "") -> Any:
    said = [pb.ChatRequest(start=start, request_id=request_id)]
    return next(iter(client.stub.Chat(iter(said), metadata=system.metadata(name), timeout=30)))


def asked(stub: Any, session_id: str) -> list[tuple[Any, Any]]:
    """Every way to ask for a session."""
    return [
        (stub.GetSession, pb.GetSessionRequest(session_id=session_id)),
        (stub.GetTurn, pb.GetTurnRequest(session_id=session_id, turn=1)),
        (stub.UpdateSession, pb.UpdateSessionRequest(session_id=session_id)),
        (stub.ExportSession, pb.ExportSessionRequest(session_id=session_id)),
        (stub.WatchTurn, pb.WatchTurnRequest(session_id=session_id, turn=1)),
        (stub.CancelTurn, pb.CancelTurnRequest(session_id=session_id, turn=1)),
        (stub.GetTurnTraces, pb.GetTurnTracesRequest(session_id=session_id)),
        (stub.ForkSession, pb.ForkSessionRequest(session_id=session_id)),
        (stub.SendMessage, pb.SendMessageRequest(session_id=session_id, content="hi", settings=SHORT)),
        (stub.DeleteSession, pb.DeleteSessionRequest(session_id=session_id)),
    ]


def test_every_process_lets_a_known_caller_in_and_no_other(system: Guarded) -> None:
    for client in system.clients("alice"):
        answer = client.generate(PROMPT, Settings(max_token_count=5)).wait()
        assert list(answer.token_ids) == paper_tokens(PROMPT, 5)
    for client in system.clients(None):
        text, tokens = partial(client.tokenize, "hi"), partial(client.detokenize, PROMPT)
        calls = (client.server_info, client.create_session, client.status, partial(sessions_of, client), text, tokens)
        for call in calls:
            assert refusal(call).code.name == "UNAUTHENTICATED"


def test_a_caller_finds_its_session_through_every_process(system: Guarded) -> None:
    with system.client("alice") as first:
        session_id = first.create_session().session_id
        assert sent(system, first, "alice", session_id)[-1].HasField("finished")
    for client in system.clients("alice"):
        for method, request in asked(client.stub, session_id)[:-1]:
            answer = method(request, metadata=system.metadata("alice"), timeout=30)
            read(answer)
        start = pb.StartChat(session_id=session_id)
        assert opened(system, client, "alice", start).opened.session.id == session_id
        assert session_id in sessions_of(client)
    with system.client("alice", 1) as client:
        for name in sessions_of(client):
            client.delete_session(name)
    for client in system.clients("alice"):
        assert refusal(partial(client.get_session, session_id)).reason == "SESSION_NOT_FOUND"


def test_to_other_callers_a_session_is_not_there_in_any_process(system: Guarded) -> None:
    with system.client("alice") as alice:
        session_id = alice.create_session().session_id
        sent(system, alice, "alice", session_id)
        for client in system.clients("bob"):
            for method, request in asked(client.stub, session_id):
                error = refusal(partial(method, request, metadata=system.metadata("bob"), timeout=30))
                assert (error.code.name, error.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND"), request
            failed = opened(system, client, "bob", pb.StartChat(session_id=session_id)).failed.error
            assert failed.code == grpc.StatusCode.NOT_FOUND.value[0]
            assert session_id not in sessions_of(client)
        assert session_id in sessions_of(alice)
        alice.delete_session(session_id)


def test_chats_that_two_callers_call_the_same_are_two_sessions_in_every_process(system: Guarded) -> None:
    name = fresh("chat")
    made: dict[str, set[str]] = {"alice": set(), "bob": set()}
    for caller, sessions in made.items():
        for client in system.clients(caller):
            sessions.add(opened(system, client, caller, pb.StartChat(), name).opened.session.id)
    assert [len(sessions) for sessions in made.values()] == [1, 1], "one for each caller, whichever process is asked"
    assert not made["alice"] & made["bob"]
    for caller, (session_id,) in made.items():
        with system.client(caller, 1) as client:
            assert session_id in sessions_of(client)
            client.delete_session(session_id)


def test_a_request_that_comes_again_through_another_process_happens_once(system: Guarded) -> None:
    message, generation = fresh("message"), fresh("generation")
    with system.client("alice") as client:
        session_id = client.create_session().session_id
    turns, sessions = set(), set()
    for client in system.clients("alice"):
        events = sent(system, client, "alice", session_id, message)
        assert events[-1].HasField("finished")
        turns.add(events[0].turn)
        request = pb.GenerateRequest(tokens={"token_ids": PROMPT}, request_id=generation, settings=SHORT)
        responses = client.stub.Generate(request, metadata=system.metadata("alice"), timeout=30)
        sessions.add(next(iter(responses)).event.started.session_id)
    assert turns == {1} and len(sessions) == 1
    with system.client("alice", 1) as client:
        asked_for = pb.GetSessionRequest(session_id=session_id)
        found = client.stub.GetSession(asked_for, metadata=system.metadata("alice"), timeout=30)
        assert found.session.turn_count == 1
        client.delete_session(session_id)


def test_every_process_tokenizes_for_a_known_caller(system: Guarded) -> None:
    for client in system.clients("bob"):
        assert client.detokenize(client.tokenize("hi", add_special_tokens=False).token_ids) == "hi"


def test_a_callers_limits_count_in_every_process(system: Guarded) -> None:
    made = []
    doors = itertools.cycle(range(len(system.doors)))
    for door in itertools.islice(doors, 8):
        with system.client("bob", door) as client:
            made.append(client.create_session().session_id)
    for client in system.clients("bob"):
        assert refusal(client.create_session).reason == "SESSION_LIMIT"
    with system.client("bob", 1) as client:
        for session_id in made:
            client.delete_session(session_id)


def test_an_operator_is_told_of_a_session_through_every_process(system: Guarded) -> None:
    with system.client("alice") as alice:
        session_id = alice.create_session().session_id
        sent(system, alice, "alice", session_id)
        for client in system.clients("watcher"):
            assert [turn.turn for turn in client.turn_traces(session_id).turns] == [1]
            assert client.status().processes
        alice.delete_session(session_id)


def test_an_orchestrators_certificate_is_no_caller(system: Guarded) -> None:
    if system.authority is None:
        pytest.skip("no certificates here")
    for client in system.clients(ORCHESTRATOR):
        error = refusal(client.create_session)
        assert error.code.name == "UNAUTHENTICATED" and "belongs to an orchestrator" in str(error)


@pytest.mark.parametrize("name", ["bob", None])
def test_a_client_that_names_another_caller_is_refused(system: Guarded, name: str | None) -> None:
    said = (("slipstream-principal-bin", b"alice"), ("slipstream-proof", "0" * 64), ("slipstream-passed-on", "1"))
    with system.client(name) as client:
        metadata = (*system.metadata(name), *said)
        error = refusal(partial(client.stub.ListSessions, pb.ListSessionsRequest(), metadata=metadata, timeout=30))
        assert error.code.name == "UNAUTHENTICATED"
