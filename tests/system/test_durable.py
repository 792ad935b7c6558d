"""Sessions outlive the process that kept them: killed, stopped or ended, another goes on with their
turns at the next token."""

from __future__ import annotations

import dataclasses
import json
import queue
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.cli.service_process import Service, ServiceFailedError
from slipstream.client import Client, PeerError, Settings
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc, turn_pb2
from tests.postgresql import running_server
from tests.system.conftest import PAPER_PAIR, wait_for_health

LEASE = ["--session-lease-seconds", "5", "--drain-seconds", "0"]
STEADY = PairSettings(target="arithmetic:ends=0&forward_ms=5", draft="", orchestrator_flags=LEASE)
COUNT = 400
Stub = orchestrator_pb2_grpc.OrchestratorServiceStub


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with running_server() as server:
        yield server.new_database()


@pytest.fixture(params=["file", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place: str = str(tmp_path / "sessions.db") if request.param == "file" else request.getfixturevalue("postgresql")
    return place


def stub_of(local: LocalServices, stack: ExitStack) -> Stub:
    return Stub(stack.enter_context(grpc.insecure_channel(local.orchestrator_address)))


def message(session_id: str, name: str, content: str, count: int = COUNT, **settings: object) -> pb.SendMessageRequest:
    said = {"max_token_count": count, **settings}
    return pb.SendMessageRequest(session_id=session_id, request_id=name, content=content, settings=said)


def watched(stub: Stub, session_id: str, turn: int, after: int = 0) -> list[turn_pb2.TurnEvent]:
    request = pb.WatchTurnRequest(session_id=session_id, turn=turn, after_token_count=after)
    return [response.event for response in stub.WatchTurn(request, timeout=180, wait_for_ready=True)]


def tokens_of(events: list[turn_pb2.TurnEvent]) -> list[int]:
    return [token for event in events for token in event.delta.token_ids]


def text_of(events: list[turn_pb2.TurnEvent]) -> str:
    return "".join(event.delta.text for event in events) + events[-1].finished.text


def read_some(stub: Stub, request: pb.SendMessageRequest, count: int = 40) -> list[int]:
    """The first tokens of a turn that goes on."""
    seen: list[int] = []
    call = stub.SendMessage(request)
    for response in call:
        seen += response.event.delta.token_ids
        if len(seen) >= count:
            call.cancel()
            return seen
    raise AssertionError("the turn is over already")


def patiently(call: Callable[[], Any]) -> None:
    """Ask as often as a client does while a busy machine takes long to see that a process is
    gone."""
    deadline = time.monotonic() + 120
    while True:
        try:
            list(call())
            return
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(1)


def kill_and_start_again(local: LocalServices) -> None:
    orchestrator = local.services["orchestrator"].process
    orchestrator.send_signal(signal.SIGKILL)
    orchestrator.wait()
    local.start_orchestrator().wait_until_healthy()


def undisturbed(local: LocalServices, contents: list[str], **settings: object) -> list[tuple[list[int], str]]:
    """Return the answers of a session to these messages if nothing happens."""
    with ExitStack() as stack:
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest(system="be brief")).session.id
        said = []
        for index, content in enumerate(contents):
            request = message(session_id, f"u{index}", content, **settings)
            events = [response.event for response in stub.SendMessage(request)]
            said.append((tokens_of(events), text_of(events)))
        return said


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "sampled"])
@pytest.mark.essential
def test_a_killed_orchestrator_loses_nothing(store: str, sampling: dict[str, float]) -> None:
    settings = {"sampling": sampling, "stop_strings": ["never said"]}
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        (first, first_text), (second, second_text) = undisturbed(local, ["hello", "and now"], **settings)
        stub = stub_of(local, stack)
        metadata = {"title": "a\0b \N{SLIGHTLY SMILING FACE}"}
        create = pb.CreateSessionRequest(request_id="mine" + str(sampling), system="be brief", metadata=metadata)
        session_id = stub.CreateSession(create).session.id
        seen = read_some(stub, message(session_id, "one", "hello", **settings))
        kill_and_start_again(local)
        stub = stub_of(local, stack)
        events = watched(stub, session_id, 1, len(seen))
        assert seen + tokens_of(events) == first
        assert events[-1].finished.usage.generated_token_count == COUNT
        assert stub.CreateSession(create).session.id == session_id, "the request is known"
        (listed,) = [s for s in stub.ListSessions(pb.ListSessionsRequest()).sessions if s.id == session_id]
        assert listed.metadata == metadata
        metadata = {"title": "another"}
        stub.UpdateSession(pb.UpdateSessionRequest(session_id=session_id, metadata=metadata))
        seen = read_some(stub, message(session_id, "two", "and now", **settings))
        kill_and_start_again(local)
        stub = stub_of(local, stack)
        again = [response.event for response in stub.SendMessage(message(session_id, "two", "and now", **settings))]
        assert again[0].turn == 2 and again[0].started.request_id == "two", "the request finds the turn that is there"
        assert tokens_of(again) == second and text_of(again) == second_text
        kill_and_start_again(local)
        stub = stub_of(local, stack)
        (listed,) = [s for s in stub.ListSessions(pb.ListSessionsRequest()).sessions if s.id == session_id]
        assert listed.metadata == metadata, "no process has the session in memory"
        assert tokens_of(watched(stub, session_id, 1)) == first, "turns that have ended can be watched"
        with pytest.raises(grpc.RpcError, match="came with another content before"):
            list(stub.SendMessage(message(session_id, "two", "something else", **settings)))
        got = stub.GetSession(pb.GetSessionRequest(session_id=session_id))
        said = ["be brief", "hello", first_text, "and now", second_text]
        assert [each.content for each in got.messages] == said
        (listed,) = [s for s in stub.ListSessions(pb.ListSessionsRequest()).sessions if s.id == session_id]
        assert listed == got.session and listed.turn_count == 2 and got.session.metadata == metadata
        stub.DeleteSession(pb.DeleteSessionRequest(session_id=session_id))
        kill_and_start_again(local)
        with pytest.raises(grpc.RpcError, match="there is no session"):
            stub_of(local, stack).GetSession(pb.GetSessionRequest(session_id=session_id))


def test_a_turn_with_a_prediction_goes_on_and_nothing_of_it_is_stored(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    with LocalServices(dataclasses.replace(STEADY, store=str(place))) as local, ExitStack() as stack:
        ((first, _),) = undisturbed(local, ["hello"])
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest(system="be brief")).session.id
        request = message(session_id, "one", "hello", speculation={"fixed": {"length": 1}})
        request.prediction.tokens.token_ids.extend([*first[:200], *[7] * 100])
        seen = read_some(stub, request)
        kill_and_start_again(local)
        again = [response.event for response in stub_of(local, stack).SendMessage(request)]
        assert tokens_of(again) == first and seen == first[: len(seen)]
        other = message(session_id, "one", "hello", speculation={"fixed": {"length": 1}})
        with pytest.raises(grpc.RpcError, match="came with another content before"):
            list(stub_of(local, stack).SendMessage(other))
        with sqlite3.connect(place) as database:
            payloads = [json.loads(payload) for (payload,) in database.execute("SELECT payload FROM turns")]
        assert payloads and all(payload["resolved"]["terms"]["prediction"] is None for payload in payloads)


def test_a_cancelled_turn_stays_as_it_was_told(store: str) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest()).session.id
        read_some(stub, message(session_id, "one", "hello", 5000))
        asked = pb.GetTurnRequest(session_id=session_id, turn=1)
        assert stub.GetTurn(asked).running
        stub.CancelTurn(pb.CancelTurnRequest(session_id=session_id, turn=1))
        assert not stub.GetTurn(asked).running
        told = watched(stub, session_id, 1)
        assert told[-1].finished.finish_reason == turn_pb2.FINISH_REASON_CANCELLED
        kill_and_start_again(local)
        assert tokens_of(watched(stub_of(local, stack), session_id, 1)) == tokens_of(told)


def test_named_generations_go_on_and_nameless_ones_end(tmp_path: Path) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))) as local, ExitStack() as stack:
        settings = {"max_token_count": COUNT, "sampling": {"temperature": 1.0, "seed": 3}}
        tokens = {"token_ids": [5, 6, 7]}
        request = pb.GenerateRequest(tokens=tokens, settings=settings, choice_count=3, request_id="named")

        def choices(request: pb.GenerateRequest) -> dict[int, list[int]]:
            said: dict[int, list[int]] = {}
            for response in stub_of(local, stack).Generate(request):
                said.setdefault(response.choice_index, []).extend(response.event.delta.token_ids)
            return said

        whole = choices(pb.GenerateRequest(tokens=tokens, settings=settings, choice_count=3))
        call = stub_of(local, stack).Generate(request)
        seen = 0
        while seen < 60:
            seen += len(next(call).event.delta.token_ids)
        kill_and_start_again(local)
        assert choices(request) == whole
        assert not stub_of(local, stack).ListSessions(pb.ListSessionsRequest()).sessions


def test_what_is_told_beside_the_tokens_is_told_again(tmp_path: Path) -> None:
    settings = {"logprobs": {"top_count": 2}, "token_origins": True}
    with LocalServices(dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))) as local, ExitStack() as stack:
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest()).session.id
        seen = read_some(stub, message(session_id, "one", "hello", 200, **settings))
        for _ in range(2):  # once while it runs, once when it has ended
            kill_and_start_again(local)
            events = watched(stub_of(local, stack), session_id, 1)
            assert tokens_of(events)[: len(seen)] == seen
            scores = [entry for event in events for entry in event.delta.logprobs]
            assert [entry.token_id for entry in scores] == tokens_of(events)
            assert all(len(entry.top) == 2 for entry in scores)
            assert sum(len(event.delta.token_origins) for event in events) == 200


def test_under_the_ratio_test_nothing_that_was_told_is_taken_back(tmp_path: Path) -> None:
    pair = dataclasses.replace(STEADY, draft="arithmetic:ends=0&agreement=0.6", store=str(tmp_path / "s.db"))
    with LocalServices(pair) as local, ExitStack() as stack:
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest()).session.id
        ratio = {"acceptance": "ACCEPTANCE_RATIO", "sampling": {"temperature": 1.0}}
        seen = read_some(stub, message(session_id, "one", "hello", **ratio))
        kill_and_start_again(local)
        whole = tokens_of(watched(stub_of(local, stack), session_id, 1))
        assert whole[: len(seen)] == seen and len(whole) == COUNT


def test_one_that_is_told_to_end_hands_its_turns_over(tmp_path: Path) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))) as local, ExitStack() as stack:
        ((whole, _),) = undisturbed(local, ["hello"])
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest(system="be brief")).session.id
        call = stub.SendMessage(message(session_id, "one", "hello"))
        seen: list[int] = []

        def read_while_it_ends() -> None:
            for response in call:
                seen.extend(response.event.delta.token_ids)
                if len(seen) > 40 and local.services["orchestrator"].process.poll() is None:
                    local.services["orchestrator"].process.terminate()

        with pytest.raises(grpc.RpcError, match="the turn goes on in the process that is asked next") as ended:
            read_while_it_ends()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert 40 < len(seen) < COUNT
        local.services["orchestrator"].process.wait()
        local.start_orchestrator().wait_until_healthy()
        assert seen + tokens_of(watched(stub_of(local, stack), session_id, 1, len(seen))) == whole


def test_a_chat_is_told_that_its_turn_goes_on_elsewhere(tmp_path: Path) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))) as local, ExitStack() as stack:
        commands: queue.SimpleQueue[pb.ChatRequest | None] = queue.SimpleQueue()
        commands.put(pb.ChatRequest(start=pb.StartChat()))
        said = pb.UserMessage(content="hello", settings={"max_token_count": COUNT})
        commands.put(pb.ChatRequest(request_id="one", message=said))
        events = []
        for event in stub_of(local, stack).Chat(iter(commands.get, None)):
            events.append(event)
            if event.turn.HasField("delta") and local.services["orchestrator"].process.poll() is None:
                local.services["orchestrator"].process.terminate()
        commands.put(None)
        assert events[-1].closing.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        session_id = events[0].opened.session.id
        local.services["orchestrator"].process.wait()
        local.start_orchestrator().wait_until_healthy()
        assert len(tokens_of(watched(stub_of(local, stack), session_id, 1))) == COUNT


def test_a_client_of_ours_notices_nothing(tmp_path: Path) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))) as local:
        ((whole, _),) = undisturbed(local, ["hello"])
        with Client(local.orchestrator_address) as client:
            reply = client.create_session("be brief").send("hello", Settings(max_token_count=COUNT))
            pieces = iter(reply)
            next(pieces)
            kill_and_start_again(local)
            for _ in pieces:
                pass
            assert reply.result.token_ids == whole


class Replica(Service):
    """Another orchestrator of the same store."""

    def __init__(
        self,
        local: LocalServices,
        store: str,
        more: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        flags = ["--verifier", local.verifier_address, "--draft", "", "--store", store]
        super().__init__("orchestrator", "orchestrator", free_address(), [*flags, *LEASE, *more], environment or {})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_replicas_share_sessions_and_take_over_what_one_leaves(store: str, number: int) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        replicas = [Replica(local, store) for _ in range(2)]
        for replica in replicas:
            stack.callback(replica.stop)
            replica.wait_until_healthy()
        ((whole, _),) = undisturbed(local, ["hello"])
        first = stub_of(local, stack)
        others = [Stub(stack.enter_context(grpc.insecure_channel(replica.address))) for replica in replicas]
        create = pb.CreateSessionRequest(system="be brief")
        ids = [stub.CreateSession(create).session.id for stub in (first, *others)]
        seen = [
            read_some(stub, message(each, "one", "hello")) for stub, each in zip((first, *others), ids, strict=True)
        ]
        from_elsewhere = watched(others[0], ids[2], 1)
        assert tokens_of(from_elsewhere) == whole, "from any process, in the care of any process"
        read_some(first, message(ids[0], "two", "and now"))
        victim = local.services["orchestrator"].process
        victim.send_signal(number)
        for stub in others:
            events = watched(stub, ids[0], 2)
            assert events[-1].finished.usage.generated_token_count == COUNT
        assert tokens_of(watched(others[1], ids[1], 1)) == whole and len(seen[1]) >= 40
        if number == signal.SIGSTOP:
            victim.send_signal(signal.SIGCONT)
            events = watched(first, ids[0], 2)  # it has lost the session, and asks who has it
            assert events[-1].finished.usage.generated_token_count == COUNT
            third = [response.event for response in first.SendMessage(message(ids[0], "three", "and then", 10))]
            assert third[0].turn == 3 and len(tokens_of(third)) == 10


def test_an_orchestrator_that_stood_still_claims_no_change_to_what_another_has_taken_over(store: str) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        replica = Replica(local, store)
        stack.callback(replica.stop)
        replica.wait_until_healthy()
        stale, owner = stub_of(local, stack), Stub(stack.enter_context(grpc.insecure_channel(replica.address)))
        ids = [stale.CreateSession(pb.CreateSessionRequest()).session.id for _ in range(5)]
        for each in ids:
            list(stale.SendMessage(message(each, "one", "hello", 5)))
        victim = local.services["orchestrator"].process
        victim.send_signal(signal.SIGSTOP)
        for each in ids:
            patiently(partial(owner.SendMessage, message(each, "two", "and now", 5)))
        read_some(owner, message(ids[4], "three", "and then", 3000, speculation={"off": {}}))  # it lasts
        victim.send_signal(signal.SIGCONT)
        changes: list[Any] = [  # all at once, before it can have found out
            stale.GetSession.future(pb.GetSessionRequest(session_id=ids[0])),
            stale.DeleteSession.future(pb.DeleteSessionRequest(session_id=ids[1])),
            stale.ForkSession.future(pb.ForkSessionRequest(session_id=ids[2], request_id="fork")),
            stale.CancelTurn.future(pb.CancelTurnRequest(session_id=ids[4], turn=3)),
        ]
        sent = [response.event for response in stale.SendMessage(message(ids[3], "three", "and then", 5))]
        got, _, forked, _ = [change.result(timeout=60) for change in changes]
        assert got.session.turn_count == 2 and sent[0].turn == 3
        with pytest.raises(grpc.RpcError, match="there is no session"):
            owner.GetSession(pb.GetSessionRequest(session_id=ids[1]))
        assert owner.GetSession(pb.GetSessionRequest(session_id=forked.session.id)).session.turn_count == 2
        assert owner.GetSession(pb.GetSessionRequest(session_id=ids[3])).session.turn_count == 3
        ended = watched(owner, ids[4], 3)[-1].finished
        assert ended.finish_reason == turn_pb2.FINISH_REASON_CANCELLED


def test_several_processes_on_each_of_two_machines_find_one_anothers_sessions(tmp_path: Path) -> None:
    store = str(tmp_path / "sessions.db")
    with LocalServices(dataclasses.replace(STEADY, store="memory")) as local, ExitStack() as stack:
        ((whole, _),) = undisturbed(local, ["hello"])
        stubs = []
        for _ in range(2):
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
            flags = ["--process-count", "2", "--advertise", f"127.0.0.1:{two_free_ports()}"]
            family = Replica(local, store, flags, {"TMPDIR": directory})
            stack.callback(family.stop)
            family.wait_until_healthy()
            stubs.append(Stub(stack.enter_context(grpc.insecure_channel(family.address))))
            for socket_file in list(Path(directory).glob("slipstream-*/?")):  # as far away as on another machine
                socket_file.unlink()
        first, second = stubs
        session_id = first.CreateSession(pb.CreateSessionRequest(system="be brief")).session.id
        read_some(first, message(session_id, "one", "hello"))
        assert tokens_of(watched(second, session_id, 1)) == whole
        answer = [response.event for response in second.SendMessage(message(session_id, "two", "and then", 10))]
        assert answer[0].turn == 2 and len(tokens_of(answer)) == 10


@pytest.mark.parametrize(
    ("advertise", "why"),
    [("here:50050", "all processes share"), ("here:50051", "all processes share"), ("here", "must be host:port")],
)
def test_processes_that_would_share_what_is_each_ones_own_are_refused(advertise: str, why: str) -> None:
    command = [sys.executable, "-m", "orchestrator", "--process-count", "2", "--advertise", advertise]
    done = subprocess.run([*command, "--address", "127.0.0.1:50051"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and why in done.stderr


def test_a_port_of_a_processs_own_that_is_taken_is_refused_though_it_could_be_shared() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "orchestrator", "--process-count", "2", "--advertise", f"here:{port - 1}"]
        command += ["--address", free_address(), "--store", "memory"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and f"127.0.0.1:{port}" in done.stderr and "--advertise" in done.stderr


def two_free_ports() -> int:
    """The first of two in a row."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            with suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port + 1))
                return port


def test_sessions_of_other_weights_are_left_to_their_processes(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest()).session.id
        read_some(stub, message(session_id, "one", "hello"))
        local.services["orchestrator"].process.kill()
    other = dataclasses.replace(STEADY, target="arithmetic:ends=0&bits=bfloat16", store=store)
    with LocalServices(dataclasses.replace(other, target="embedded")) as local, ExitStack() as stack:
        stub = stub_of(local, stack)
        with pytest.raises(grpc.RpcError, match="comes from other weights") as refused:
            stub.GetSession(pb.GetSessionRequest(session_id=session_id))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert not stub.ListSessions(pb.ListSessionsRequest()).sessions
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        assert len(tokens_of(watched(stub_of(local, stack), session_id, 1))) == COUNT


def test_a_store_that_cannot_be_written_refuses_new_turns_and_loses_none(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    with LocalServices(dataclasses.replace(STEADY, store=str(place))) as local, ExitStack() as stack:
        ((whole, _),) = undisturbed(local, ["hello"])
        stub = stub_of(local, stack)
        session_id = stub.CreateSession(pb.CreateSessionRequest(system="be brief")).session.id
        seen = read_some(stub, message(session_id, "one", "hello"))
        blocker = sqlite3.connect(place, isolation_level=None)  # another process that does not let go
        blocker.execute("BEGIN IMMEDIATE")
        assert seen + tokens_of(watched(stub, session_id, 1, len(seen))) == whole, "what runs goes on"
        with pytest.raises(grpc.RpcError, match="sessions cannot be written to") as refused:
            list(stub.SendMessage(message(session_id, "two", "and now", 5)))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        blocker.execute("ROLLBACK")
        blocker.close()
        deadline = time.monotonic() + 30
        while True:
            try:
                events = [response.event for response in stub.SendMessage(message(session_id, "two", "and now", 5))]
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert events[0].turn == 2 and len(tokens_of(events)) == 5
        kill_and_start_again(local)
        assert tokens_of(watched(stub_of(local, stack), session_id, 1)) == whole, "its end was written later"


def test_what_cannot_be_a_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (str(tmp_path / "file" / "s.db"), str(tmp_path), "postgresql://127.0.0.1:1/none"):
        with pytest.raises(ServiceFailedError, match=r"orchestrator: sessions cannot be stored in .*: .*--store"):
            LocalServices(dataclasses.replace(PAPER_PAIR, draft="", store=wrong)).__enter__()


def test_an_expired_session_is_told_from_one_that_never_was_after_a_restart_too(tmp_path: Path) -> None:
    flags = [*LEASE, "--session-ttl-seconds", "2"]
    pair = dataclasses.replace(STEADY, store=str(tmp_path / "s.db"), orchestrator_flags=flags)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        session_id = client.create_session().session_id
        kill_and_start_again(local)
        deadline = time.monotonic() + 30
        while True:
            listed = client.stub.ListSessions(pb.ListSessionsRequest()).sessions
            if not listed:
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        kill_and_start_again(local)
        with grpc.insecure_channel(local.orchestrator_address) as channel:
            wait_for_health(channel)
        for unknown, reason in ((session_id, "SESSION_EXPIRED"), ("0" * 16, "SESSION_NOT_FOUND")):
            with pytest.raises(PeerError) as caught:
                client.get_session(unknown)
            assert caught.value.reason == reason


def test_a_fork_goes_on_as_its_session_would_and_leaves_it_alone(store: str) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=store)) as local, ExitStack() as stack:
        settings = {"max_token_count": 20, "sampling": {"temperature": 1.0, "seed": 5}}
        stub = stub_of(local, stack)
        source = stub.CreateSession(pb.CreateSessionRequest(system="be brief", settings=settings)).session.id

        def say(session_id: str, content: str) -> list[int]:
            request = pb.SendMessageRequest(session_id=session_id, content=content, request_id=content)
            return tokens_of([response.event for response in stub.SendMessage(request)])

        said = [say(source, content) for content in ("one", "two", "three")]
        before = stub.GetSession(pb.GetSessionRequest(session_id=source))
        fork = pb.ForkSessionRequest(session_id=source, after_turn=1, request_id=f"fork {source}")
        forked = stub.ForkSession(fork).session
        assert forked.id != source and (forked.turn_count, forked.message_count) == (1, 3)
        assert stub.ForkSession(fork).session.id == forked.id, "sent again it is the same"
        kill_and_start_again(local)
        stub = stub_of(local, stack)
        assert say(forked.id, "two") == said[1], "the same message, the same words"
        assert say(forked.id, "other") != said[2] and say(forked.id, "one") != said[0], "no request of the old is known"
        assert tokens_of(watched(stub, forked.id, 1)) == said[0]
        assert stub.GetSession(pb.GetSessionRequest(session_id=source)) == before
        whole = stub.ForkSession(pb.ForkSessionRequest(session_id=source)).session
        assert whole.token_count == before.session.token_count
        empty = stub.ForkSession(pb.ForkSessionRequest(session_id=source, after_turn=0)).session
        assert (empty.turn_count, empty.message_count) == (0, 1)
        stub.DeleteSession(pb.DeleteSessionRequest(session_id=source))
        assert tokens_of(watched(stub, whole.id, 3)) == said[2]
        for wrong, code in ((4, "NOT_FOUND"), (-1, "NOT_FOUND")):
            with pytest.raises(grpc.RpcError, match="the last that has is 3") as refused:
                stub.ForkSession(pb.ForkSessionRequest(session_id=whole.id, after_turn=wrong))
            assert refused.value.code().name == code


def test_a_fork_with_another_system_message_reads_it_after_a_restart_too(tmp_path: Path) -> None:
    with LocalServices(dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))) as local:
        with Client(local.orchestrator_address) as client:
            session = client.create_session("be brief", Settings(max_token_count=3))
            session.send("one").wait()
            at_once = client.fork_session(session.session_id, system="be long").session_id
            later = client.fork_session(session.session_id, system="be long").session_id
            with client.chat(session_id=at_once) as chat:
                expected = chat.send("two", Settings(seed=1)).wait()
        kill_and_start_again(local)
        with Client(local.orchestrator_address) as client, client.chat(session_id=later) as chat:
            assert chat.send("two", Settings(seed=1)).wait().token_ids == expected.token_ids
            prompts = [client.export_session(name)["turns"][-1]["promptTokenIds"] for name in (at_once, later)]
        assert prompts[0] == prompts[1]


def test_all_that_is_kept_of_a_session_is_exported_as_json(tmp_path: Path) -> None:
    pair = dataclasses.replace(STEADY, store=str(tmp_path / "s.db"))
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        session = client.create_session("be brief", Settings(temperature=1.0, max_token_count=5))
        results = [session.send(content).wait() for content in ("one", "two")]
        command = [sys.executable, "-m", "slipstream.cli", "export", session.session_id]
        command += ["--address", local.orchestrator_address]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        exported = json.loads(printed)
        assert exported == client.export_session(session.session_id)
        assert exported["system"] == "be brief" and exported["settings"]["maxTokenCount"] == 5
        assert [turn["content"] for turn in exported["turns"]] == ["one", "two"]
        tokens: list[int] = []
        for turn, result in zip(exported["turns"], results, strict=True):
            assert turn["tokenIds"] == result.token_ids and turn["text"] == result.text
            assert int(turn["seed"]) == result.seed and turn["finishReason"] == "FINISH_REASON_MAX_TOKENS"
            tokens = [*tokens[: turn.get("sharedTokenCount", 0)], *turn.get("promptTokenIds", []), *turn["tokenIds"]]
        assert len(tokens) == exported["session"]["tokenCount"]
        missing = subprocess.run([*command[:-3], "0" * 16, *command[-2:]], capture_output=True, text=True, timeout=60)
        assert missing.returncode == 1 and "there is no session" in missing.stderr and not missing.stdout


def test_a_deleted_session_is_not_in_its_file_any_more(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    with (
        LocalServices(dataclasses.replace(STEADY, store=str(place))) as local,
        Client(local.orchestrator_address) as client,
    ):
        session = client.create_session("a parsnip of mine")
        session.send("another parsnip", Settings(max_token_count=5)).wait()
        assert b"another parsnip" in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        client.delete_session(session.session_id)
        local.services["orchestrator"].stop()
    assert b"parsnip" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_flood_of_unused_sessions_keeps_no_principal_out(tmp_path: Path) -> None:
    flags = [*LEASE, "--max-session-count", "50", "--store", str(tmp_path / "sessions.db")]
    with LocalServices(dataclasses.replace(STEADY, orchestrator_flags=flags)) as local, ExitStack() as stack:
        stub = stub_of(local, stack)
        used = stub.CreateSession(pb.CreateSessionRequest()).session.id
        said = [r.event for r in stub.SendMessage(message(used, "m", "hello", 5), timeout=30)]
        names = [stub.CreateSession(pb.CreateSessionRequest()).session.id for _ in range(200)]
        with pytest.raises(grpc.RpcError, match="or without its first one when there was no room"):
            stub.GetSession(pb.GetSessionRequest(session_id=names[0]))
        again = [r.event for r in stub.SendMessage(message(used, "n", "hello", 5), timeout=30)]
        late = stub.CreateSession(pb.CreateSessionRequest()).session.id
        assert tokens_of([r.event for r in stub.SendMessage(message(late, "m", "hello", 5), timeout=30)])
        assert len(tokens_of(said)) == len(tokens_of(again)) == 5
        assert stub.GetSession(pb.GetSessionRequest(session_id=names[-1])).session.id == names[-1]
        (process,) = stub.GetStatus(pb.GetStatusRequest()).processes
        assert process.session_count <= 51
