"""A turn belongs to its session: it runs with or without a reader, ends once, and outlives every
stream but not its server."""

from __future__ import annotations

import dataclasses
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2, status_pb2

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc, turn_pb2
from tests.system.conftest import PAPER_PAIR, wait_for_health

STEADY = PairSettings(
    target="arithmetic:ends=0&forward_ms=5",
    draft="arithmetic:ends=0&agreement=0.8&forward_ms=1",
    target_flags=["--drain-seconds", "0"],
    draft_flags=["--drain-seconds", "0"],
)
PLAIN: dict[str, object] = {"speculation": {"off": {}}}


@pytest.fixture(scope="module")
def steady() -> Iterator[LocalServices]:
    with LocalServices(STEADY) as local:
        yield local


@pytest.fixture
def stub(steady: LocalServices) -> Iterator[orchestrator_pb2_grpc.OrchestratorServiceStub]:
    with grpc.insecure_channel(steady.orchestrator_address) as channel:
        yield orchestrator_pb2_grpc.OrchestratorServiceStub(channel)


Stub = orchestrator_pb2_grpc.OrchestratorServiceStub


def is_known(stub: Stub, session_id: str) -> bool:
    try:
        stub.GetSession(pb.GetSessionRequest(session_id=session_id))
    except grpc.RpcError as error:
        return error.code() != grpc.StatusCode.NOT_FOUND
    return True


def new_session(stub: Stub) -> str:
    return stub.CreateSession(pb.CreateSessionRequest()).session.id


def message(session_id: str, name: str, count: int, content: str = "hello") -> pb.SendMessageRequest:
    settings = {"max_token_count": count, **PLAIN}
    return pb.SendMessageRequest(session_id=session_id, request_id=name, content=content, settings=settings)


def tokens_of(events: list[turn_pb2.TurnEvent]) -> list[int]:
    return [token for event in events for token in event.delta.token_ids]


def watched(stub: Stub, session_id: str, turn: int, after: int = 0) -> list[turn_pb2.TurnEvent]:
    request = pb.WatchTurnRequest(session_id=session_id, turn=turn, after_token_count=after)
    return [response.event for response in stub.WatchTurn(request)]


def reason_of(status: status_pb2.Status) -> tuple[str, bool]:
    """The reason, and whether a retry can help."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        for known in (info, retry):
            if detail.Is(known.DESCRIPTOR):
                detail.Unpack(known)
    return info.reason, retry.HasField("retry_delay")


class Commands:
    """A chat's commands, sent as a test goes on."""

    def __init__(self, stub: Stub) -> None:
        self._queue: queue.SimpleQueue[pb.ChatRequest | None] = queue.SimpleQueue()
        self.call = stub.Chat(iter(self._queue.get, None))

    def send(self, name: str, **command: object) -> None:
        self._queue.put(pb.ChatRequest(request_id=name, **command))

    def close(self) -> None:
        self._queue.put(None)

    def until(self, kind: str) -> pb.ChatResponse:
        """The next response that is, or is of, this kind."""
        for response in self.call:
            event = response.WhichOneof("event")
            if kind in (event, response.turn.WhichOneof("event") if event == "turn" else ""):
                return response
        raise AssertionError(f"the chat ended without {kind}")


@pytest.mark.essential
def test_a_lost_stream_is_watched_on_from_any_position_by_any_number(stub: Stub) -> None:
    session = new_session(stub)
    call = stub.SendMessage(message(session, "m", 150))
    begun = [next(call).event for _ in range(4)]
    call.cancel()
    seen = tokens_of(begun)
    later = [watched(stub, session, 1, after) for after in (len(seen), 0, 100)]
    whole = tokens_of(later[1])
    assert len(whole) == 150
    assert seen + tokens_of(later[0]) == whole
    assert tokens_of(later[2]) == whole[100:]
    for events in later:
        assert [event.turn for event in events] == [1] * len(events)
        assert (events[0].WhichOneof("event"), events[-1].WhichOneof("event")) == ("started", "finished")
        assert events[0].started.request_id == "m"


def test_a_message_sent_twice_at_once_is_one_turn_and_another_content_is_refused(stub: Stub) -> None:
    session = new_session(stub)
    calls = [stub.SendMessage(message(session, "m", 40)) for _ in range(2)]
    first, second = ([response.event for response in call] for call in calls)
    assert tokens_of(first) == tokens_of(second) and len(tokens_of(first)) == 40
    assert stub.GetSession(pb.GetSessionRequest(session_id=session)).session.turn_count == 1
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.SendMessage(message(session, "m", 40, content="something else")))
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    behind = message(session, "n", 40)
    behind.after_token_count = -1
    with pytest.raises(grpc.RpcError, match="after_token_count must be 0 or more"):
        list(stub.SendMessage(behind))
    assert stub.GetSession(pb.GetSessionRequest(session_id=session)).session.turn_count == 1, "nothing has begun"


def test_a_request_is_the_same_through_a_chat_and_through_a_call(stub: Stub) -> None:
    settings = {"max_token_count": 20, "sampling": {"logit_bias": {7: 1.0, 9: -1.0}}, **PLAIN}
    new = pb.CreateSessionRequest(request_id="same start", system="s", settings=settings)
    session = stub.CreateSession(new).session.id
    chat = Commands(stub)
    chat.send("same start", start={"system": "another", "settings": settings})
    assert reason_of(chat.until("failed").failed.error)[0] == "REQUEST_ID_REUSED"
    chat.send("same start", start={"system": "s", "settings": settings})
    assert chat.until("opened").opened.session.id == session
    chat.send("m", message={"content": "x", "settings": settings})
    chat.until("finished")
    chat.send("m", message={"content": "x", "settings": settings, "after_token_count": 5})
    assert [chat.until(kind).turn.turn for kind in ("started", "finished")] == [1, 1]
    request = pb.SendMessageRequest(session_id=session, request_id="m", content="x", settings=settings)
    assert len(tokens_of([response.event for response in stub.SendMessage(request)])) == 20
    request.settings.sampling.logit_bias[9] = 1.0
    with pytest.raises(grpc.RpcError, match="came with another content"):
        list(stub.SendMessage(request))
    chat.close()


def test_a_generation_with_a_name_goes_on_alone_and_one_without_ends_with_its_call(stub: Stub) -> None:
    prompt = pb.TokenList(token_ids=[5, 6, 7])
    named = pb.GenerateRequest(
        tokens=prompt, settings={"max_token_count": 100, **PLAIN}, choice_count=2, request_id="generation"
    )
    call = stub.Generate(named)
    assert next(call).event.WhichOneof("event") == "started"
    call.cancel()
    again = list(stub.Generate(named))
    for index in range(2):
        assert len(tokens_of([r.event for r in again if r.choice_index == index])) == 100
    named.after_token_counts.extend([90])
    rest = list(stub.Generate(named))
    assert [len(tokens_of([r.event for r in rest if r.choice_index == index])) for index in range(2)] == [10, 100]
    stub.DeleteSession(pb.DeleteSessionRequest(session_id=rest[0].event.started.session_id))
    del named.after_token_counts[:]
    again = list(stub.Generate(named))  # one of its answers is gone: both are generated again
    assert [len(tokens_of([r.event for r in again if r.choice_index == index])) for index in range(2)] == [100, 100]
    nameless = stub.Generate(pb.GenerateRequest(tokens=prompt, settings={"max_token_count": 4000, **PLAIN}))
    session = next(nameless).event.started.session_id
    nameless.cancel()
    deadline = time.monotonic() + 60
    while is_known(stub, session):
        assert time.monotonic() < deadline, "the generation outlived its call"
        time.sleep(0.02)


def test_a_cancel_names_its_turn_and_never_hits_another(stub: Stub) -> None:
    chat = Commands(stub)
    chat.send("start", start={})
    session = chat.until("opened").opened.session.id
    settings = {"max_token_count": 3000, **PLAIN}
    chat.send("one", message={"content": "one", "settings": settings})
    chat.send("two", message={"content": "two", "settings": settings})
    chat.send("three", message={"content": "three", "settings": {"max_token_count": 3, **PLAIN}})
    assert chat.until("started").turn.started.request_id == "one"
    chat.send("cancel two", cancel={"request_id": "two"})
    failed = chat.until("failed").failed
    assert (failed.request_id, reason_of(failed.error)[0]) == ("two", "MESSAGE_CANCELLED")
    chat.send("cancel one", cancel={"turn": 1})
    assert chat.until("finished").turn.finished.finish_reason == turn_pb2.FINISH_REASON_CANCELLED
    chat.send("cancel one again", cancel={"turn": 1})  # it has ended: the turn that runs now is not hit
    finished = chat.until("finished").turn
    assert (finished.turn, finished.finished.finish_reason) == (2, turn_pb2.FINISH_REASON_MAX_TOKENS)
    chat.close()
    stub.CancelTurn(pb.CancelTurnRequest(session_id=session, turn=2))
    with pytest.raises(grpc.RpcError, match="there is no turn 3"):
        stub.CancelTurn(pb.CancelTurnRequest(session_id=session, turn=3))


def test_what_a_stream_says_of_settings_is_over_the_sessions_and_can_be_cleared(stub: Stub) -> None:
    created = stub.CreateSession(pb.CreateSessionRequest(settings={"max_token_count": 7, **PLAIN}))
    session = created.session.id
    settings = stub.GetSession(pb.GetSessionRequest(session_id=session)).settings
    assert settings.max_token_count == 7 and settings.speculation.HasField("off")
    lengths = []
    for own in ({}, {"max_token_count": 3}, {"cleared": {"paths": ["max_token_count"]}}):
        request = pb.SendMessageRequest(session_id=session, content="x", settings=own)
        lengths.append(len(tokens_of([response.event for response in stub.SendMessage(request)])))
    assert lengths == [7, 3, 512]


READER = """
import sys, time
import grpc
from slipstream.v1 import orchestrator_pb2 as pb, orchestrator_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.http2.lookahead_bytes", 0)])
stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
settings = {"max_token_count": 1000, "speculation": {"off": {}}, "logprobs": {"top_count": 20}}
call = stub.SendMessage(pb.SendMessageRequest(session_id=sys.argv[2], request_id="m", content="x", settings=settings))
next(call)
print("reading", flush=True)
time.sleep(600)
"""


def test_a_frozen_client_holds_nothing(steady: LocalServices, stub: Stub) -> None:
    session = new_session(stub)
    command = [sys.executable, "-c", READER, steady.orchestrator_address, session]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "reading\n"
            frozen.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.RpcError) as busy:
                list(stub.SendMessage(message(session, "other", 5)))
            assert reason_of(_status_of(busy.value)) == ("SESSION_BUSY", True)
            events = watched(stub, session, 1)  # it ends as if it were read
            assert len(tokens_of(events)) == 1000
            assert sum(event.ByteSize() for event in events) > 2 * 2**16, "more than a stream takes unread"
            assert len(tokens_of([r.event for r in stub.SendMessage(message(session, "other", 5))])) == 5
        finally:
            frozen.kill()


def test_a_client_that_never_reads_costs_no_memory_and_delays_no_other(steady: LocalServices, stub: Stub) -> None:
    process = psutil.Process(steady.services["orchestrator"].process.pid)
    sessions = [new_session(stub) for _ in range(4)]
    calls = []
    for session in sessions:
        request = message(session, "m", 1200)
        request.settings.logprobs.top_count = 6
        calls.append(stub.SendMessage(request))
        next(calls[-1])
    prompts = [[10 + index, 20, 30] for index in range(4)]
    with Client(steady.orchestrator_address) as client:

        def answers() -> list[list[int]]:
            return [client.generate(p, Settings(max_token_count=50)).wait().token_ids for p in prompts]

        first = answers()
        before = process.memory_info().rss
        assert [answers() for _ in range(3)] == [first] * 3
        assert process.memory_info().rss - before < 2**23
    with grpc.insecure_channel(steady.orchestrator_address) as channel:
        for session in sessions:
            events = watched(orchestrator_pb2_grpc.OrchestratorServiceStub(channel), session, 1)
            assert len(tokens_of(events)) == 1200 and sum(event.ByteSize() for event in events) > 2**16
    for call in calls:
        call.cancel()


def _status_of(error: grpc.RpcError) -> status_pb2.Status:
    status = status_pb2.Status()
    trailers: dict[str, bytes] = dict(error.trailing_metadata())
    status.ParseFromString(trailers["grpc-status-details-bin"])
    return status


@pytest.mark.essential
def test_sigterm_lets_turns_finish_begins_none_and_ends_a_second_later() -> None:
    pair = dataclasses.replace(STEADY, orchestrator_flags=["--drain-seconds", "120"])
    with LocalServices(pair) as local, grpc.insecure_channel(local.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        idle = Commands(stub)
        idle.send("start", start={})
        idle.until("opened")
        busy = Commands(stub)
        busy.send("start", start={})
        busy.send("m", message={"content": "x", "settings": {"max_token_count": 600, **PLAIN}})
        busy.send("late", message={"content": "y", "settings": {"max_token_count": 600, **PLAIN}})
        busy.until("started")
        results: list[list[turn_pb2.TurnEvent]] = []
        last_token: list[float] = []

        def read() -> None:
            call = stub.SendMessage(message(new_session(stub), "m", 600))
            first = next(call).event
            begun.release()
            results.append([first, *(response.event for response in call)])
            last_token.append(time.monotonic())

        begun = threading.Semaphore(0)
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
            begun.acquire()
        session = new_session(stub)
        local.services["orchestrator"].process.send_signal(signal.SIGTERM)
        closing = idle.until("closing")
        assert reason_of(closing.closing.error) == ("SHUTTING_DOWN", True)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.SendMessage(message(session, "new", 5)))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(_status_of(refused.value)) == ("SHUTTING_DOWN", True)
        assert busy.until("finished").turn.finished.usage.generated_token_count == 600
        late = busy.until("failed").failed
        assert (late.request_id, reason_of(late.error)) == ("late", ("SHUTTING_DOWN", True))
        busy.until("closing")
        for reader in readers:
            reader.join()
        assert [len(tokens_of(events)) for events in results] == [600] * 3
        assert all(events[-1].HasField("finished") for events in results)
        local.services["orchestrator"].process.wait(60)
        assert time.monotonic() - max(last_token) < 20  # a second, on a machine that has it; and not the whole drain


def test_a_turn_that_a_drain_cuts_says_so_and_keeps_what_it_said() -> None:
    flags = ["--drain-seconds", "0.3"]
    settings = PairSettings(target=STEADY.target, draft=STEADY.draft, orchestrator_flags=flags)
    with LocalServices(settings) as local, grpc.insecure_channel(local.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        call = stub.SendMessage(message(new_session(stub), "m", 4000))
        events = [next(call).event for _ in range(3)]
        local.services["orchestrator"].process.send_signal(signal.SIGTERM)
        events += [response.event for response in call]
    failed = events[-1].failed
    assert reason_of(failed.error) == ("SHUTTING_DOWN", True)
    assert failed.usage.generated_token_count == len(tokens_of(events)) > 0


def test_an_orchestrator_whose_verifier_is_away_is_not_healthy_until_it_is_back() -> None:
    with LocalServices(PAPER_PAIR) as local, grpc.insecure_channel(local.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)

        def wait_for(serving: bool) -> None:
            wait_for_health(channel, serving)
            assert stub.GetServerInfo(pb.GetServerInfoRequest()).verifier_reachable == serving

        wait_for(True)
        local.services["verifier"].process.kill()
        wait_for(False)
        local.start_verifier().wait_until_healthy()
        wait_for(True)


def test_a_turn_that_cannot_go_on_fails_in_band_and_the_same_message_may_try_again() -> None:
    flags = ["--verifier-patience-seconds", "0.5"]
    settings = PairSettings(target=STEADY.target, draft=STEADY.draft, orchestrator_flags=flags)
    with LocalServices(settings) as local, grpc.insecure_channel(local.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        session = new_session(stub)
        local.services["verifier"].process.kill()
        events = [response.event for response in stub.SendMessage(message(session, "m", 5))]
        assert [event.WhichOneof("event") for event in events] == ["started", "failed"]
        assert reason_of(events[-1].failed.error) == ("VERIFIER_LOST", True)
        assert len(stub.GetSession(pb.GetSessionRequest(session_id=session)).messages) == 0
        local.start_verifier().wait_until_healthy()
        wait_for_health(channel)  # the orchestrator has found it again
        again = [response.event for response in stub.SendMessage(message(session, "m", 5))]
        assert len(tokens_of(again)) == 5
        assert {event.turn for event in again} == {2}  # the undone turn's number never means another


def test_a_drain_does_not_wait_for_turns_that_cannot_go_on() -> None:
    with LocalServices(STEADY) as local, grpc.insecure_channel(local.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        call = stub.SendMessage(message(new_session(stub), "m", 4000))
        events = [next(call).event for _ in range(3)]
        local.services["verifier"].process.kill()
        local.services["orchestrator"].process.send_signal(signal.SIGTERM)
        events += [response.event for response in call]
        assert reason_of(events[-1].failed.error) == ("SHUTTING_DOWN", True)
        assert local.services["orchestrator"].process.wait(25) == 0  # a turn waits 30 s for a lost verifier
