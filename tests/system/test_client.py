"""Both clients on the real services: what is lost is watched on, what is sent twice happens once,
every token comes once."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from orchestrator.sessions.durability.loaded import MAX_RECENT_TURNS
from slipstream.cli.local import LocalServices
from slipstream.client import Client, PeerError, Reply, Settings
from slipstream.errors import Code
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc, turn_pb2
from tests.dropping_proxy import DroppingProxy
from tests.either_client import KINDS, connected, until
from tests.system.conftest import LASTING, paper_tokens

PROMPT = [10, 20, 30]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def either(kind: str, paper: LocalServices) -> Iterator[Client]:
    with connected(kind, paper.orchestrator_address) as client:
        yield client


@pytest.fixture
def proxy(paper: LocalServices) -> Iterator[DroppingProxy]:
    with DroppingProxy(paper.orchestrator_address) as proxy:
        yield proxy


def test_a_session_keeps_its_metadata_and_so_does_its_fork(either: Client) -> None:
    metadata = {f"{index:02}" + "é" * 62: "ü" * 512 for index in range(16)}
    with either.chat(metadata=metadata) as chat:
        chat.send("x", Settings(max_token_count=1)).wait()
        forked = either.fork_session(chat.session_id)
        got = [chat.info, forked.info, either.get_session(chat.session_id).info]
        listed = [session for session in either.list_sessions(page_size=2) if session.session_id == chat.session_id]
        exported = either.export_session(chat.session_id)["session"]["metadata"]
    assert [session.metadata for session in (*got, *listed)] == [metadata] * 4
    assert exported == metadata and len(set(got)) == 3
    assert either.create_session().info.metadata == {}


def test_a_turn_is_kept_with_what_it_was_asked(either: Client) -> None:
    with either.chat(system="be brief", settings=Settings(temperature=1.0, max_token_count=1)) as chat:
        note = "é" * 65_536
        asked = chat.send("x", Settings(seed=5), "r", note=note).wait()
        turn = either.get_turn(chat.session_id, 1)
        assert (turn.turn, turn.request_id, turn.system, turn.content) == (1, "r", "be brief", "x")
        assert (turn.note, turn.running) == (note, False)
        assert (turn.settings.sampling.seed, turn.settings.sampling.temperature) == (asked.seed, 1.0)
        assert turn.settings.max_token_count == 1
        begun = turn.create_time.ToDatetime(UTC)
        assert chat.info.create_time <= begun <= either.get_session(chat.session_id).info.last_active_time
        with pytest.raises(PeerError) as unknown:
            either.get_turn(chat.session_id, 2)
        assert unknown.value.reason == "TURN_NOT_FOUND"
    with pytest.raises(PeerError) as refused:
        either.chat().send("x", note=note + "x").wait()
    assert [violation.field for violation in refused.value.violations] == ["note"]


def test_a_turn_of_long_ago_is_watched_too(either: Client) -> None:
    with either.chat(settings=Settings(max_token_count=1)) as chat:
        first = chat.send("x", Settings(seed=5, top_logprob_count=1)).wait()
        for _ in range(MAX_RECENT_TURNS):
            chat.send("x").wait()
        watched = either.watch(chat.session_id, 1).wait()
        told = ("text", "token_ids", "logprobs", "seed", "finish_reason", "prompt_token_count", "total_time")
        assert [getattr(watched, name) for name in told] == [getattr(first, name) for name in told]
        with pytest.raises(PeerError) as unknown:
            either.watch(chat.session_id, MAX_RECENT_TURNS + 2).wait()
        assert unknown.value.reason == "TURN_NOT_FOUND"


@pytest.mark.parametrize("system", ["be long", "", "be brief", None])
def test_a_fork_may_have_another_system_message(either: Client, system: str | None) -> None:
    short = Settings(max_token_count=3)
    with either.chat(system="be brief", settings=short) as chat:
        chat.send("one").wait()
        fork = either.fork_session(chat.session_id, system=system)
        fork.send("two").wait()
        expected = {None: "be brief", "": None}.get(system, system)
        messages = either.get_session(fork.session_id).messages
        assert [message.content for message in messages if message.role == "system"] == ([expected] if expected else [])
        turns = either.export_session(fork.session_id)["turns"]
        tokens: list[int] = []
        for turn in turns:
            tokens = tokens[: turn.get("sharedTokenCount", 0)] + turn["promptTokenIds"] + turn["tokenIds"]
        pairs = [(message.role, message.content) for message in messages[:-1]]
        rendered = either.detokenize(either.tokenize(pairs).token_ids)
        assert either.detokenize(tokens[:-3]) == rendered
        assert [message.content for message in either.get_session(chat.session_id).messages][:2] == ["be brief", "one"]


def test_a_sessions_metadata_changes_while_its_turn_runs_and_its_forks_have_the_new_one(either: Client) -> None:
    with either.chat(metadata={"title": "old", "other": "x"}) as chat:
        deltas = chat.send("1 2", LASTING).deltas()
        next(deltas)
        assert either.update_session(chat.session_id, {"title": "new"}).metadata == {"title": "new"}
        chat.cancel()
        chat.send("3", Settings(max_token_count=1)).wait()
        session_id = chat.session_id
    fork = either.fork_session(session_id)
    listed = {session.session_id: session.metadata for session in either.list_sessions()}
    assert (listed[session_id], listed[fork.session_id]) == ({"title": "new"}, {"title": "new"})
    for metadata in ({"": "x"}, {"title": "x" * 513}, {str(index): "" for index in range(17)}):
        with pytest.raises(PeerError) as refused:
            either.update_session(session_id, metadata)
        assert [violation.field for violation in refused.value.violations] == ["metadata"]
    with pytest.raises(PeerError) as unknown:
        either.update_session(either.generate("x", Settings(max_token_count=1)).wait().session_id, {})
    assert unknown.value.reason == "SESSION_NOT_FOUND"
    assert either.update_session(session_id, {}).metadata == {}


def test_a_chat_stream_creates_a_session_with_metadata_once(paper: LocalServices) -> None:
    with Client(paper.orchestrator_address) as client:
        start = pb.ChatRequest(start={"metadata": {"a": "1", "b": "2"}}, request_id="with metadata")
        opened = [next(iter(client.stub.Chat(iter([start])))).opened.session for _ in range(2)]
        assert opened[0].id == opened[1].id and dict(opened[1].metadata) == {"a": "1", "b": "2"}
        start.start.metadata["a"] = "2"
        (failed,) = client.stub.Chat(iter([start]))
        assert failed.failed.error.code == grpc.StatusCode.ALREADY_EXISTS.value[0]


def read_dropping(reply: Reply, proxy: DroppingProxy, every: int) -> list[int]:
    """All tokens of a reply whose connection is dropped after every so many of them."""
    tokens: list[int] = []
    drop_at = every
    for delta in reply.deltas():
        assert delta.token_offset == len(tokens)
        tokens += delta.token_ids
        if len(tokens) >= drop_at:
            proxy.drop()
            drop_at = len(tokens) + every
    return tokens


def test_a_session_is_created_talked_to_listed_asked_for_and_deleted(either: Client) -> None:
    clock = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    session = either.create_session("be brief", Settings(max_token_count=5), clock)
    first, second = session.send("one").wait(), session.send("two", Settings(max_token_count=7)).wait()
    assert (first.turn, first.generated_token_count) == (1, 5)
    assert (second.turn, second.generated_token_count) == (2, 7)
    assert first.session_id == session.session_id
    got = either.get_session(session.session_id)
    assert [message.role for message in got.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert got.messages[2].content == first.text
    assert (got.info.turn_count, got.info.running_turn, got.info.template_time) == (2, None, clock)
    others = [either.create_session() for _ in range(3)]
    listed = [info.session_id for info in either.list_sessions(page_size=2)]
    assert listed[:4] == [other.session_id for other in reversed(others)] + [session.session_id]
    for each in (session, *others):
        each.delete()
    for call in (session.delete, lambda: either.get_session(session.session_id), session.send("three").wait):
        with pytest.raises(PeerError) as caught:
            call()
        assert (caught.value.code, caught.value.reason) == (Code.NOT_FOUND, "SESSION_NOT_FOUND")


def test_a_session_created_twice_with_one_request_id_is_one(either: Client) -> None:
    twice = [either.create_session(request_id="the same").session_id for _ in range(2)]
    assert twice[0] == twice[1] != either.create_session().session_id


def test_a_refusal_says_which_field_and_a_full_prompt_how_long_it_may_be(either: Client) -> None:
    with pytest.raises(PeerError) as caught:
        either.generate(PROMPT, Settings(temperature=-1.0)).wait()
    assert [violation.field for violation in caught.value.violations] == ["settings.sampling.temperature"]
    with pytest.raises(PeerError) as caught:
        either.generate([5] * 9000).wait()
    assert caught.value.reason == "PROMPT_TOO_LONG"
    assert caught.value.metadata["context_length"] == "8192"
    with pytest.raises(PeerError) as caught:
        either.answer([("robot", "x")]).wait()
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_turn_that_is_cancelled_keeps_what_it_said_and_the_session_goes_on(either: Client) -> None:
    with either.chat(settings=LASTING) as chat:
        reply = chat.send("x")
        pieces = iter(reply)
        next(pieces)
        chat.cancel()
        said = reply.wait()
        assert said.finish_reason == "CANCELLED"
        assert chat.send("y", Settings(max_token_count=5)).wait().prompt_token_count > said.generated_token_count
        either.cancel(chat.session_id, said.turn)  # has ended: left as it is
        with pytest.raises(PeerError) as caught:
            chat.cancel(99)
        assert caught.value.reason == "TURN_NOT_FOUND"


def test_sending_again_while_a_reply_is_unread_ends_that_reply_and_answers_the_new_question(either: Client) -> None:
    with either.chat(settings=LASTING) as chat, either.chat() as undisturbed:
        left = chat.send("first")
        for _ in left:
            break
        chat.send("second")
        answer = chat.send("third", Settings(max_token_count=5)).wait()
        assert (answer.turn, answer.generated_token_count) == (3, 5)
        messages = either.get_session(chat.session_id).messages
        questions = [message.content for message in messages if message.role == "user"]
        assert questions[0] == "first" and questions[-1] == "third"
        assert messages[-1].content == answer.text
        assert undisturbed.send("fourth", Settings(max_token_count=5)).wait().turn == 1


def test_settings_of_a_resumed_session_lie_between_its_own_and_a_messages(either: Client) -> None:
    session = either.create_session(settings=Settings(max_token_count=5, draft_length=0))
    with either.chat(session_id=session.session_id, settings=Settings(max_token_count=7)) as chat:
        assert chat.send("a").wait().generated_token_count == 7
        assert chat.send("b", Settings(max_token_count=3)).wait().generated_token_count == 3
        assert chat.send("c").wait().draft_token_count == 0
        assert chat.send("d", Settings(cleared=["max_token_count"])).wait().generated_token_count > 7
    with pytest.raises(PeerError, match="system must be left out"):
        either.chat(session_id=session.session_id, system="too late")


def test_a_turn_can_be_watched_from_any_position_running_or_ended(either: Client) -> None:
    reply = either.generate(PROMPT, Settings(max_token_count=600))
    pieces = iter(reply)
    next(pieces)
    session_id, turn = reply.result.session_id, reply.result.turn
    running = either.watch(session_id, turn, 100)
    whole = reply.wait()
    assert whole.token_ids == paper_tokens(PROMPT, 600)
    assert running.wait().token_ids == whole.token_ids[100:]
    for position in (0, 1, 333, 599, 600):
        seen = either.watch(session_id, turn, position).wait()
        assert seen.token_ids == whole.token_ids[position:]
        assert whole.text.endswith(seen.text)
        assert seen.finish_reason == "MAX_TOKENS"


def test_a_generation_goes_on_through_lost_connections_and_every_token_comes_once(
    kind: str, proxy: DroppingProxy
) -> None:
    with connected(kind, proxy.address) as client:
        client.server_info()
        reply = client.generate(PROMPT, LASTING)
        assert read_dropping(reply, proxy, every=200) == paper_tokens(PROMPT, 8000)
        assert reply.result.finish_reason == "MAX_TOKENS"
        assert client.watch(reply.result.session_id, reply.result.turn).wait().text == reply.result.text
    assert proxy.connection_count > 2


@pytest.mark.essential
def test_the_deltas_of_several_choices_say_whose_they_are(either: Client) -> None:
    settings = Settings(max_token_count=6, seed=3, temperature=1.0)
    expected = [result.token_ids for result in either.generate_choices(PROMPT, 3, settings)]
    reply = either.generate(PROMPT, settings, choice_count=3)
    tokens: list[list[int]] = [[], [], []]
    for delta in reply.deltas():
        tokens[delta.choice_index] += delta.token_ids
    assert tokens == expected == [result.token_ids for result in reply.results]


@pytest.mark.essential
def test_a_client_for_another_caller_shares_the_connection_and_leaves_it_open(kind: str, paper: LocalServices) -> None:
    settings = Settings(max_token_count=3)
    with connected(kind, paper.orchestrator_address) as client:
        tokens = client.generate(PROMPT, settings).wait().token_ids
        other = client.for_caller(metadata=[("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01")])
        reading = other.generate(PROMPT, LASTING)
        other.close()
        with pytest.raises(PeerError):
            reading.wait()
        assert client.generate(PROMPT, settings).wait().token_ids == tokens


def test_choices_go_on_through_lost_connections(kind: str, proxy: DroppingProxy) -> None:
    settings = Settings(max_token_count=400, temperature=20.0, seed=5)
    with connected(kind, proxy.address) as client:
        undisturbed = client.generate_choices(PROMPT, 3, settings)
        over = threading.Event()

        def keep_dropping() -> None:
            pause = 0.15
            while not over.wait(pause):
                proxy.drop()
                pause *= 1.5  # at last it is long enough on any machine

        dropping = threading.Thread(target=keep_dropping)
        dropping.start()
        try:
            disturbed = client.generate_choices(PROMPT, 3, settings)
        finally:
            over.set()
            dropping.join()
    assert [choice.token_ids for choice in disturbed] == [choice.token_ids for choice in undisturbed]
    assert [choice.text for choice in disturbed] == [choice.text for choice in undisturbed]


def test_two_hundred_messages_sent_twice_over_connections_that_drop_are_two_hundred_turns(
    paper: LocalServices, proxy: DroppingProxy
) -> None:
    """With the asyncio client alone: the blocking client is generated from it."""
    rng = random.Random(7)
    over = threading.Event()

    def keep_dropping() -> None:
        while not over.wait(rng.uniform(0.05, 0.4)):
            proxy.drop()

    def talk(client: Client, number: int) -> None:
        settings = Settings(max_token_count=40 + number, draft_length=number % 5)
        with Client(paper.orchestrator_address) as calm, calm.chat() as twin, client.chat() as chat:
            for turn in range(1, 26):
                expected = twin.send(f"message {turn}", settings).wait()
                name = f"{number} {turn}"
                for _ in range(2):
                    got = chat.send(f"message {turn}", settings, request_id=name).wait()
                    assert (got.turn, got.token_ids, got.text) == (turn, expected.token_ids, expected.text)
            assert calm.get_session(chat.session_id).info.turn_count == 25

    with connected("asyncio", proxy.address) as client, ThreadPoolExecutor(8) as pool:
        client.server_info()
        dropping = threading.Thread(target=keep_dropping)
        dropping.start()
        try:
            list(pool.map(lambda number: talk(client, number), range(8)))
        finally:
            over.set()
            dropping.join()
    assert proxy.connection_count > 5


def test_a_session_created_over_a_connection_that_drops_is_one(kind: str, proxy: DroppingProxy) -> None:
    with connected(kind, proxy.address) as client:
        client.server_info()
        before = len(list(client.list_sessions()))
        for number in range(20):
            cutting = threading.Timer(0.001 * number, proxy.drop)
            cutting.start()
            client.create_session()
            cutting.join()
        assert len(list(client.list_sessions())) == before + 20


def test_a_lost_server_is_told_and_given_up_in_time(kind: str, proxy: DroppingProxy) -> None:
    lost: list[PeerError] = []
    with connected(kind, proxy.address, reconnect=3.0, on_lost=lost.append) as client:
        reply = client.generate(PROMPT, LASTING)
        pieces = iter(reply)
        next(pieces)
        proxy.refusing = True
        proxy.drop()
        with pytest.raises(PeerError) as caught:
            reply.wait()
        assert caught.value.code is Code.UNAVAILABLE
        assert len(lost) == 1
        proxy.refusing = False
        assert client.generate(PROMPT, Settings(max_token_count=5)).wait().token_ids == paper_tokens(PROMPT, 5)


def test_a_turn_ends_with_its_deadline(either: Client) -> None:
    session = either.create_session(settings=LASTING)
    with pytest.raises(PeerError) as caught:
        session.send("x", timeout=0.3).wait()
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    until(lambda: either.get_session(session.session_id).info.running_turn is None)


def test_metadata_goes_with_every_call(kind: str) -> None:
    seen: list[set[tuple[str, str]]] = []

    class Listening(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append({(key, value) for key, value in details.invocation_metadata if key == "who"})
            return None

    server = grpc.server(ThreadPoolExecutor(2), interceptors=(Listening(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with connected(kind, f"127.0.0.1:{port}", metadata=[("who", "me")]) as client:
            for call in (client.server_info, client.generate("x").wait):
                with pytest.raises(PeerError):
                    call()
    finally:
        server.stop(None).wait()
    assert seen == [{("who", "me")}] * 2


def test_an_answer_is_had_with_its_last_event_and_its_stream_ends_by_itself(kind: str) -> None:
    had, over, were_active = threading.Event(), threading.Event(), []

    class Slow(orchestrator_pb2_grpc.OrchestratorServiceServicer):
        """Takes its time between a turn's last event and the stream's end."""

        def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
            yield pb.GenerateResponse(event=turn_pb2.TurnEvent(turn=1, started={"session_id": "s"}))
            finished = {"finish_reason": turn_pb2.FINISH_REASON_MAX_TOKENS}
            yield pb.GenerateResponse(event=turn_pb2.TurnEvent(turn=1, finished=finished))
            assert had.wait(20), "the client waits for more than the turn's end"
            were_active.append(not over.wait(0.2) and context.is_active())
            over.set()

    server = grpc.server(ThreadPoolExecutor(2))
    orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(Slow(), server)  # type: ignore[abstract] # one method is asked
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with connected(kind, f"127.0.0.1:{port}") as client:
            assert client.generate("x").wait().finish_reason == "MAX_TOKENS"
            gc.collect()
            had.set()
            assert over.wait(20)
    finally:
        server.stop(None).wait()
    assert were_active == [True]


def test_the_chat_stream_is_at_the_stub(client: Client) -> None:
    def commands() -> Iterator[pb.ChatRequest]:
        yield pb.ChatRequest(start={"settings": {"max_token_count": 4}})
        yield pb.ChatRequest(request_id="mine", message={"content": "x"})

    events = [event.turn for event in client.stub.Chat(commands()) if event.WhichOneof("event") == "turn"]
    assert events[0].started.request_id == "mine"
    assert sum(len(event.delta.token_ids) for event in events) == 4


@pytest.mark.parametrize("name", ["chat.py", "async_chat.py"])
@pytest.mark.essential
def test_an_example_runs(paper: LocalServices, name: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), paper.orchestrator_address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.count("MAX_TOKENS") == 2
