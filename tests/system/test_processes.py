"""Several orchestrator processes behind one port look like one, from whichever of them a connection
comes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client, PeerError, Settings
from slipstream.v1 import orchestrator_pb2, turn_pb2
from tests.system.conftest import LASTING, PAPER_PAIR

COUNT = 3
FAMILY = dataclasses.replace(
    PAPER_PAIR, orchestrator_flags=["--process-count", str(COUNT), "--drain-seconds", "5", "--max-session-count", "300"]
)


@pytest.fixture(scope="module")
def family() -> Iterator[LocalServices]:
    with LocalServices(FAMILY) as local:
        yield local


def keepers(family: LocalServices) -> list[psutil.Process]:
    """The processes that keep sessions: not the one that started them, not multiprocessing's
    own."""
    parent = family.services["orchestrator"].process.pid
    alive = psutil.process_iter(["ppid", "cmdline"])
    return [p for p in alive if p.info["ppid"] == parent and "spawn_main" in " ".join(p.info["cmdline"] or [])]


def opened(client: Client) -> str:
    """A new session, which lives where the client's connection ends."""
    with client.chat() as chat:
        return chat.session_id


def process_of(client: Client) -> str:
    """What tells the process that a client's connection ends in: ids of what is not stored begin
    with it."""
    return client.generate([1], Settings(max_token_count=1)).wait().session_id[:4]


def a_client_of_each(address: str) -> list[Client]:
    """Clients whose connections different processes got."""
    found: dict[str, Client] = {}
    deadline = time.monotonic() + 60
    while len(found) < COUNT:
        assert time.monotonic() < deadline, f"connections came to {len(found)} processes only"
        client = Client(address)
        if found.setdefault(process_of(client), client) is not client:
            client.close()
    return list(found.values())


@pytest.fixture(scope="module")
def clients(family: LocalServices) -> Iterator[list[Client]]:
    """One client of each process."""
    found = a_client_of_each(family.orchestrator_address)
    yield found
    for client in found:
        client.close()


def test_the_kernel_spreads_connections_over_all_processes(family: LocalServices, clients: list[Client]) -> None:
    assert len(keepers(family)) == COUNT
    assert len({process_of(client) for client in clients}) == COUNT


@pytest.mark.essential
def test_a_generation_is_watched_and_cancelled_from_elsewhere(clients: list[Client]) -> None:
    call = clients[0].stub.Generate(orchestrator_pb2.GenerateRequest(text="abc", settings=LASTING.message()))
    session_id = next(iter(call)).event.started.session_id
    next(iter(clients[1].watch(session_id, 1)))
    clients[2].cancel(session_id, 1)
    reasons = [response.event.finished.finish_reason for response in call]
    assert reasons[-1] == turn_pb2.FINISH_REASON_CANCELLED


@pytest.mark.essential
def test_a_request_is_answered_once_by_any_process(clients: list[Client]) -> None:
    ids = {client.create_session(request_id="once").session_id for client in clients}
    assert len(ids) == 1
    texts = [client.generate([9, 9], Settings(max_token_count=9), "once").wait() for client in clients]
    assert len({result.session_id for result in texts}) == 1
    assert len({tuple(result.token_ids) for result in texts}) == 1


def test_the_status_is_all_processes_and_a_trace_is_found_from_everywhere(clients: list[Client]) -> None:
    with clients[0].chat() as chat:
        result = chat.send("x", Settings(max_token_count=20, draft_length=4)).wait()
    for client in clients:
        status = client.stub.GetStatus(orchestrator_pb2.GetStatusRequest())
        assert [process.number for process in status.processes] == list(range(COUNT))
        assert sum(process.generated_token_count for process in status.processes) >= 20
        assert all(peer.load.page_count for process in status.processes for peer in process.peers)
        request = orchestrator_pb2.GetTurnTracesRequest(session_id=chat.session_id, turn_count=9)
        (turn,) = client.stub.GetTurnTraces(request).turns
        assert turn.round_count == len(turn.rounds) == result.round_count and not turn.running
        assert sum(each.committed_token_count for each in turn.rounds) == 20
        assert sum(each.accepted_token_count for each in turn.rounds) == result.accepted_token_count
    with pytest.raises(grpc.RpcError) as refused:
        clients[0].stub.GetTurnTraces(orchestrator_pb2.GetTurnTracesRequest(session_id="0" * 17))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError, match="turn_count must be from 0 to 64"):
        clients[0].stub.GetTurnTraces(orchestrator_pb2.GetTurnTracesRequest(turn_count=65))


def test_a_session_is_the_same_from_everywhere(clients: list[Client]) -> None:
    settings = Settings(max_token_count=20)

    def talk(connections: list[Client]) -> list[list[int]]:
        session_id, said = None, []
        for client, text in zip(connections, ("a", "bc", "def"), strict=True):
            with client.chat(session_id=session_id) as chat:
                session_id = chat.session_id
                said.append(chat.send(text, settings).wait().token_ids)
        return said

    assert talk(clients) == talk([clients[0]] * 3)


def test_a_turn_is_cancelled_and_a_stream_broken_off_from_elsewhere(clients: list[Client]) -> None:
    session_id = opened(clients[0])
    with clients[1].chat(session_id=session_id, settings=LASTING) as chat:
        reply = chat.send("x")
        pieces = iter(reply)
        next(pieces)
        with clients[2].chat(session_id=session_id) as other, pytest.raises(PeerError) as caught:
            other.send("y").wait()
        assert caught.value.reason == "SESSION_BUSY"
        chat.cancel()
        for _ in pieces:
            pass
        assert reply.result.finish_reason == "CANCELLED"
        assert chat.send("y", Settings(max_token_count=5)).wait().generated_token_count == 5
    chat = clients[2].chat(session_id=session_id, settings=LASTING)
    next(iter(chat.send("z")))
    chat.close()
    deadline = time.monotonic() + 60
    while (
        clients[1]
        .stub.GetSession(orchestrator_pb2.GetSessionRequest(session_id=session_id))
        .session.HasField("running_turn")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sessions_are_found_listed_and_deleted_from_everywhere(clients: list[Client]) -> None:
    ids = []
    for client in [clients[0], *clients]:
        with client.chat() as chat:
            chat.send("x", Settings(max_token_count=1)).wait()
            ids.append(chat.session_id)
    for client in clients:
        for session_id in ids:
            got = client.stub.GetSession(orchestrator_pb2.GetSessionRequest(session_id=session_id))
            assert [message.content for message in got.messages][:1] == ["x"]
        listed: list[str] = []
        token = ""
        while len(listed) < 4:
            page = client.stub.ListSessions(orchestrator_pb2.ListSessionsRequest(page_size=2, page_token=token))
            assert len(page.sessions) == 2
            listed += [session.id for session in page.sessions]
            token = page.next_page_token
        assert [session_id for session_id in listed if session_id in ids] == ids[::-1]
    clients[0].stub.DeleteSession(orchestrator_pb2.DeleteSessionRequest(session_id=ids[2]))
    for client in clients:
        with pytest.raises(PeerError, match="there is no session") as lost:
            client.chat(session_id=ids[2])
        assert lost.value.reason == "SESSION_NOT_FOUND"
        for nobodys in (ids[2], "0123", "not an id"):
            with pytest.raises(grpc.RpcError) as caught:
                client.stub.GetSession(orchestrator_pb2.GetSessionRequest(session_id=nobodys))
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
            keys = [pair.key for pair in caught.value.trailing_metadata()]
            assert "grpc-status-details-bin" in keys  # the reason came through
    with pytest.raises(grpc.RpcError, match="page_size"):
        clients[0].stub.ListSessions(orchestrator_pb2.ListSessionsRequest(page_size=1001))


def test_a_killed_process_comes_back_its_turns_go_on_and_the_others_did_not_notice() -> None:
    settings = Settings(max_token_count=400, draft_length=0)
    slow = dataclasses.replace(FAMILY, target="arithmetic:ends=0&forward_ms=5", draft="")
    with LocalServices(slow) as local:
        clients = a_client_of_each(local.orchestrator_address)
        sessions = [client.create_session() for client in clients]
        undisturbed = [client.chat().send("hello", settings).wait() for client in clients]
        replies = [session.send("hello", settings) for session in sessions]
        pieces = [iter(reply) for reply in replies]
        for each in pieces:
            next(each)
        victim = keepers(local)[0]
        victim.kill()
        for each in pieces:
            for _ in each:
                pass
        for reply, whole in zip(replies, undisturbed, strict=True):
            assert reply.result.token_ids == whole.token_ids
        with Client(local.orchestrator_address) as client:
            for session in sessions:
                assert client.get_session(session.session_id).messages[1].content == undisturbed[0].text
        deadline = time.monotonic() + 60
        while len(keepers(local)) < COUNT:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for client in clients:
            client.close()
        remaining = keepers(local)
        local.services["orchestrator"].stop()
        assert not psutil.wait_procs(remaining, timeout=60)[1]


def test_no_process_outlives_the_one_that_started_them() -> None:
    with LocalServices(FAMILY) as local:
        started = keepers(local)
        assert len(started) == COUNT
        local.services["orchestrator"].process.kill()
        assert not psutil.wait_procs(started, timeout=60)[1]


def test_a_taken_port_is_refused_and_what_listens_there_goes_on(family: LocalServices) -> None:
    for count in ("1", "2"):
        command = [sys.executable, "-m", "orchestrator", "--process-count", count]
        command += ["--address", family.orchestrator_address, "--verifier", family.verifier_address, "--draft", ""]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ended.returncode != 0
        assert f"cannot listen on {family.orchestrator_address}: it is in use" in ended.stderr
    with Client(family.orchestrator_address) as client:
        assert client.server_info().verifier_reachable


def test_an_address_that_is_none_is_refused() -> None:
    for address in ("nowhere.invalid:50051", "127.0.0.1:70000", "127.0.0.1"):
        command = [sys.executable, "-m", "orchestrator", "--process-count", "2", "--insecure", "--address", address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ended.returncode != 0
        assert f"cannot listen on {address}" in ended.stderr


def test_processes_that_cannot_serve_say_why_and_end(family: LocalServices, tmp_path: Path) -> None:
    too_long_for_a_socket = tmp_path / ("x" * 100)
    too_long_for_a_socket.mkdir()
    command = [sys.executable, "-m", "orchestrator", "--process-count", "2", "--address", "127.0.0.1:0"]
    command += ["--verifier", family.verifier_address, "--draft", ""]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "TMPDIR": str(too_long_for_a_socket)}
    )
    assert ended.returncode == 1
    assert "cannot listen on unix:" in ended.stderr
    assert not list(too_long_for_a_socket.iterdir())
