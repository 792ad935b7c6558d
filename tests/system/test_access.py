"""Who may ask: tokens and web tokens are checked, and to everybody else a principal's sessions are
not there."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from slipstream.bearer_tokens import TokenHash, make_token
from slipstream.cli.local import LocalServices
from slipstream.client import Client, PeerError, Settings
from slipstream.rpc.status import error_of, error_of_call
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc
from tests.system.conftest import PAPER_PAIR, paper_tokens

PROMPT = [10, 20, 30]
AUDIENCE, ISSUER = "slipstream", "https://login.example"
TOKENS = {name: make_token() for name in ("alice", "bob", "late", "watcher", "meek")}
KEYS: dict[str, Any] = {
    "first": ec.generate_private_key(ec.SECP256R1()),
    "second": rsa.generate_private_key(65537, 2048),
}


def kept(token: TokenHash, expires: datetime | None = None) -> str:
    ends = "" if expires is None else f", expires = {expires.isoformat()}"
    return f'{{ id = "{token.id}", salt = "{token.salt}", sha256 = "{token.sha256}"{ends} }}'


def access_file(folder: Path, *, without: str = "", called: Mapping[str, str] | None = None) -> Path:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    lines = ["[default]", "max_session_count = 2"]
    for name, (_, token) in TOKENS.items():
        if name != without:
            lines += [
                "[[principals]]",
                f'name = "{(called or {}).get(name, name)}"',
                f"tokens = [{kept(token, yesterday if name == 'late' else None)}]",
            ]
            lines += ["operator = true"] if name == "watcher" else []
            lines += ["tokens_per_minute = 50", "max_running_turn_count = 2"] if name == "meek" else []
    lines += ["[jwt]", 'keys = "keys.json"', f'audience = "{AUDIENCE}"', f'issuer = "{ISSUER}"']
    path = folder / "access.toml"
    new = folder / "access.toml.new"
    new.write_text("\n".join(lines))
    new.replace(path)
    return path


def key_set() -> dict[str, Any]:
    first = jwt.algorithms.ECAlgorithm.to_jwk(KEYS["first"].public_key(), as_dict=True)
    second = jwt.algorithms.RSAAlgorithm.to_jwk(KEYS["second"].public_key(), as_dict=True)
    return {"keys": [{**first, "kid": "first", "alg": "ES256"}, {**second, "kid": "second", "alg": "RS256"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access")
    (path / "keys.json").write_text(json.dumps(key_set()))
    return path


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[LocalServices]:
    flags = ["--access", str(access_file(folder)), "--process-count", "2"]
    with LocalServices(dataclasses.replace(PAPER_PAIR, orchestrator_flags=flags)) as local:
        yield local


def client_of(local: LocalServices, token: str | None) -> Client:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    return Client(local.orchestrator_address, metadata=metadata)


def web_token(kid: str = "first", **changed: Any) -> str:
    claims = {"sub": "carol", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 600, **changed}
    algorithm = "ES256" if kid == "first" else "RS256"
    return jwt.encode(
        {name: value for name, value in claims.items() if value is not None},
        KEYS[kid],
        algorithm,
        headers={"kid": kid},
    )


def answer(client: Client, request_id: str | None = None) -> list[int]:
    return list(client.generate(PROMPT, Settings(max_token_count=5), request_id).wait().token_ids)


def sessions_of(client: Client) -> list[str]:
    return [session.session_id for session in client.list_sessions()]


def refusal_of_call(method: Any, request: Any, metadata: Any) -> PeerError:
    try:
        list(method(request, metadata=metadata, timeout=20))  # a stream says so once it is read
    except grpc.RpcError as error:
        return error_of_call(error)
    raise AssertionError(f"{request} was answered")


def refusal(call: Callable[[], object]) -> PeerError:
    with pytest.raises(PeerError) as caught:
        call()
    return caught.value


@pytest.mark.essential
def test_web_tokens_of_all_keys_are_let_in(guarded: LocalServices) -> None:
    for kid in KEYS:
        with client_of(guarded, web_token(kid)) as client:
            assert answer(client) == paper_tokens(PROMPT, 5)


def unsigned() -> str:
    claims = {"sub": "carol", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 600}
    return jwt.encode(claims, None, "none", headers={"kid": "first"})


def signed_with_what_is_public() -> str:
    claims = {"sub": "carol", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 600}
    return jwt.encode(claims, json.dumps(key_set()).encode().hex(), "HS256", headers={"kid": "second"})


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (lambda: None, "missing"),
        (lambda: "", "wrong"),
        (lambda: TOKENS["alice"][1].id + ".guessed", "wrong"),
        (lambda: make_token()[0], "wrong"),
        (lambda: TOKENS["late"][0], "expired"),
        (lambda: "x" * 5_000, "wrong"),
        (lambda: web_token(exp=time.time() - 60), "expired"),
        (lambda: web_token(exp=None), "wrong"),
        (lambda: web_token(aud="another"), "wrong"),
        (lambda: web_token(iss="https://elsewhere.example"), "wrong"),
        (lambda: web_token(sub="two\nlines"), "wrong"),
        (lambda: web_token(nbf=time.time() + 600), "wrong"),
        (lambda: web_token()[:-4] + "AAAA", "wrong"),
        (unsigned, "wrong"),
        (signed_with_what_is_public, "wrong"),
    ],
)
def test_a_caller_without_a_valid_token_is_refused(
    guarded: LocalServices, token: Callable[[], str | None], why: str
) -> None:
    with client_of(guarded, token()) as client:
        error = refusal(lambda: answer(client))
        assert (error.code.name, error.reason, error.metadata) == ("UNAUTHENTICATED", "UNAUTHENTICATED", {"why": why})
        assert refusal(client.server_info).code.name == "UNAUTHENTICATED"
        assert refusal(lambda: sessions_of(client)).code.name == "UNAUTHENTICATED"


def test_a_chat_without_a_token_is_refused_in_its_stream(guarded: LocalServices) -> None:
    with client_of(guarded, None) as client:
        for start in (pb.StartChat(), pb.StartChat(session_id="0123456789abcdef")):
            said = [pb.ChatRequest(start=start), pb.ChatRequest(message=pb.UserMessage(content="hi"))]
            told = [response.failed.error for response in client.stub.Chat(iter(said), timeout=20)]
            assert [error_of(status).reason for status in told] == ["UNAUTHENTICATED"]
        silent: queue.SimpleQueue[pb.ChatRequest | None] = (
            queue.SimpleQueue()
        )  # no stream is held open for an unknown caller
        assert len(list(client.stub.Chat(iter(silent.get, None), timeout=20))) == 1
        silent.put(None)


def test_two_principals_may_call_their_requests_the_same(guarded: LocalServices) -> None:
    with client_of(guarded, TOKENS["alice"][0]) as alice, client_of(guarded, TOKENS["bob"][0]) as bob:
        longer = bob.generate(PROMPT, Settings(max_token_count=7), "same").wait()
        assert answer(alice, "same") == paper_tokens(PROMPT, 5)
        assert list(longer.token_ids) == paper_tokens(PROMPT, 7)
        assert refusal(lambda: answer(bob, "same")).reason == "REQUEST_ID_REUSED"


def test_only_an_operator_is_told_what_runs_for_others(folder: Path) -> None:
    flags = ["--access", str(access_file(folder))]
    slow = dataclasses.replace(PAPER_PAIR, target="arithmetic:ends=0&forward_ms=20", draft="", orchestrator_flags=flags)
    with (
        LocalServices(slow) as local,
        client_of(local, TOKENS["alice"][0]) as alice,
        client_of(local, TOKENS["bob"][0]) as bob,
        client_of(local, TOKENS["watcher"][0]) as watcher,
    ):
        reply = alice.generate(PROMPT, Settings(max_token_count=400, draft_length=0))
        pieces = iter(reply)
        next(pieces)
        for client, told in ((alice, 1), (bob, 0), (watcher, 1)):
            (process,) = client.status().processes
            assert (process.running_turn_count, len(process.running_turns)) == (1, told)
        (name,) = [turn.session_id for turn in watcher.status().processes[0].running_turns]
        assert [turn.turn for turn in watcher.turn_traces(name).turns] == [1]
        assert refusal(lambda: bob.turn_traces(name)).reason == "SESSION_NOT_FOUND"
        reply.close()


def test_one_principal_keeps_as_many_sessions_as_it_may(guarded: LocalServices) -> None:
    with client_of(guarded, TOKENS["alice"][0]) as alice, client_of(guarded, TOKENS["bob"][0]) as bob:
        made = [alice.create_session(), alice.create_session()]
        error = refusal(alice.create_session)
        assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "SESSION_LIMIT")
        assert "you have 2 sessions, of at most 2" in str(error)
        bob.create_session().delete()
        for session in made:
            session.delete()


@pytest.mark.essential
def test_one_connection_speaks_for_several_callers(guarded: LocalServices) -> None:
    with client_of(guarded, None) as client:
        for name in ("alice", "bob"):
            assert answer(client.for_caller(TOKENS[name][0])) == paper_tokens(PROMPT, 5)
        assert refusal(lambda: answer(client)).code.name == "UNAUTHENTICATED"


@pytest.mark.essential
def test_a_caller_is_told_its_limits_and_what_they_leave(guarded: LocalServices) -> None:
    with client_of(guarded, TOKENS["meek"][0]) as meek, client_of(guarded, TOKENS["bob"][0]) as bob:
        limits = meek.server_info().caller_limits
        assert (limits.max_turn_count, limits.turn_count) == (2, 0)
        assert (limits.tokens_per_minute, limits.left_token_count) == (50, 50)
        assert not bob.server_info().HasField("caller_limits")


@pytest.mark.essential
def test_one_principal_has_as_many_tokens_a_minute_and_turns_at_once_as_it_may(guarded: LocalServices) -> None:
    for _ in range(8):  # until a process is met twice: each counts for itself
        with client_of(guarded, TOKENS["meek"][0]) as meek:
            error = refusal(lambda: meek.generate_choices(PROMPT, 3, Settings(max_token_count=5)))
            assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "PRINCIPAL_LIMIT")
            assert error.metadata == {"limit": "running_turn_count"} and error.retry_after is None
            try:
                meek.generate(PROMPT, Settings(max_token_count=40, ignore_end_tokens=True)).wait()
            except PeerError as refused:
                error = refused
                break
    assert (error.reason, error.metadata) == ("PRINCIPAL_LIMIT", {"limit": "tokens_per_minute"})
    assert error.retry_after is not None and 20 < error.retry_after < 60
    with client_of(guarded, TOKENS["bob"][0]) as bob:
        assert answer(bob) == paper_tokens(PROMPT, 5)


def test_a_token_that_is_withdrawn_counts_no_more_not_even_in_an_open_chat(
    guarded: LocalServices, folder: Path
) -> None:
    metadata = (("authorization", f"Bearer {TOKENS['alice'][0]}"),)
    with client_of(guarded, TOKENS["alice"][0]) as alice:

        class Chat:
            """A chat that stays open, and how its next message is answered."""

            def __init__(self, start: pb.StartChat) -> None:
                self.said: queue.SimpleQueue[pb.ChatRequest | None] = queue.SimpleQueue()
                self.events = alice.stub.Chat(iter(self.said.get, None), metadata=metadata, timeout=60)
                self.said.put(pb.ChatRequest(start=start))
                self.name = next(self.events).opened.session.id

            def answered(self) -> str:
                settings = {"max_token_count": 3}
                self.said.put(pb.ChatRequest(message=pb.UserMessage(content="hello", settings=settings)))
                for event in self.events:
                    if event.HasField("turn") and event.turn.HasField("finished"):
                        return "answered"
                    if event.HasField("closing"):
                        self.said.put(None)
                        assert not list(self.events)
                        return error_of(event.closing.error).reason
                return "closed"

        chat = Chat(pb.StartChat())
        try:
            assert chat.answered() == "answered"
            (folder / "access.toml").write_text("no = [TOML")  # what cannot be read changes nothing
            time.sleep(2.2)
            assert chat.answered() == "answered"
            access_file(folder, without="alice")
            time.sleep(2.2)
            assert chat.answered() == "UNAUTHENTICATED"
            assert refusal(lambda: sessions_of(alice)).reason == "UNAUTHENTICATED"
            access_file(folder)
            time.sleep(1.2)
            chat = Chat(pb.StartChat(session_id=chat.name))
            access_file(folder, called={"alice": "eve"})
            time.sleep(2.2)
            assert chat.answered() == "UNAUTHENTICATED"  # the token is another principal's by now
            assert refusal(lambda: alice.get_session(chat.name)).reason == "SESSION_NOT_FOUND"
        finally:
            access_file(folder)
            time.sleep(1.2)
        chat = Chat(pb.StartChat(session_id=chat.name))
        assert chat.answered() == "answered"  # it is hers again
        chat.said.put(None)
        alice.delete_session(chat.name)


def test_a_stream_ends_when_its_token_is_withdrawn_or_expires(folder: Path) -> None:
    flags = ["--access", str(access_file(folder))]
    slow = dataclasses.replace(PAPER_PAIR, target="arithmetic:ends=0&forward_ms=50", draft="", orchestrator_flags=flags)
    settings = Settings(max_token_count=8000, ignore_end_tokens=True)
    with LocalServices(slow) as local, ExitStack() as stack:
        bob = stack.enter_context(client_of(local, TOKENS["bob"][0]))
        reply = bob.generate(PROMPT, Settings(max_token_count=1000, ignore_end_tokens=True))
        streams = []
        owners: dict[str, str] = {}
        for is_soon in (False, True):  # the token that expires is made just before its use
            # It counts for eight seconds: ten are allowed for clocks that differ.
            token = web_token(exp=time.time() - 2) if is_soon else TOKENS["alice"][0]
            session = stack.enter_context(client_of(local, token)).create_session()
            owners[session.session_id] = "carol" if is_soon else "alice"
            sent = session.send("hello", settings)
            streams.append(iter(sent.deltas()))
            next(streams[-1])
        access_file(folder, without="alice")
        try:
            for stream in streams:
                assert refusal(partial(list, stream)).reason == "UNAUTHENTICATED"
            assert len(reply.wait().token_ids) == 1000  # others' streams go on
        finally:
            access_file(folder)
        time.sleep(1.2)  # until the access file counts
        for session_id, owner in owners.items():  # or the services would wait for their turns
            token = web_token() if owner == "carol" else TOKENS["alice"][0]
            stack.enter_context(client_of(local, token)).delete_session(session_id)


def test_chats_of_a_withdrawn_token_are_refused_in_every_process(guarded: LocalServices, folder: Path) -> None:
    metadata = (("authorization", f"Bearer {TOKENS['alice'][0]}"),)
    with ExitStack() as stack:
        alice = stack.enter_context(client_of(guarded, TOKENS["alice"][0]))
        name = alice.create_session().session_id
        chats = []
        for _ in range(8):  # whose connections either process got
            client = stack.enter_context(client_of(guarded, TOKENS["alice"][0]))
            said: queue.SimpleQueue[pb.ChatRequest | None] = queue.SimpleQueue()
            events = client.stub.Chat(iter(said.get, None), metadata=metadata, timeout=60)
            said.put(pb.ChatRequest(start=pb.StartChat(session_id=name)))
            assert next(events).opened.session.id == name
            chats.append((said, events))
        try:
            access_file(folder, without="alice")
            time.sleep(1.2)
            for said, events in chats:
                said.put(pb.ChatRequest(message=pb.UserMessage(content="hello")))
                try:
                    told = next(events)
                    reason = error_of(told.failed.error if told.HasField("failed") else told.closing.error).reason
                except grpc.RpcError as error:
                    reason = error_of_call(error).reason
                assert reason == "UNAUTHENTICATED"
                said.put(None)
        finally:
            access_file(folder)
            time.sleep(1.2)
        alice.delete_session(name)


def test_a_session_stays_its_principals_when_another_process_takes_it_over(folder: Path, tmp_path: Path) -> None:
    flags = ["--access", str(access_file(folder)), "--store", str(tmp_path / "s.db"), "--session-lease-seconds", "5"]
    with LocalServices(dataclasses.replace(PAPER_PAIR, orchestrator_flags=flags, store="")) as local:
        with client_of(local, TOKENS["alice"][0]) as alice:
            name = alice.create_session("be brief", request_id="mine").session_id
        local.services["orchestrator"].process.kill()
        local.start_orchestrator().wait_until_healthy()
        with client_of(local, TOKENS["bob"][0]) as bob, client_of(local, TOKENS["alice"][0]) as alice:
            assert refusal(lambda: bob.get_session(name)).reason == "SESSION_NOT_FOUND"
            assert bob.status().processes[0].session_count == 0  # nor is it taken over for another principal
            assert bob.create_session("be brief", request_id="mine").session_id != name
            assert alice.create_session("be brief", request_id="mine").session_id == name
            assert alice.get_session(name).session_id == name


def test_an_orchestrator_ends_in_one_line_where_its_access_file_cannot_be_read(tmp_path: Path) -> None:
    flags = ["--access", str(tmp_path / "none.toml"), "--address", "127.0.0.1:0", "--store", "memory"]
    ended = subprocess.run([sys.executable, "-m", "orchestrator", *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert (
        ended.stderr.splitlines()[-1] == f"orchestrator: --access {tmp_path / 'none.toml'}: No such file or directory"
    )
    assert "Traceback" not in ended.stderr


def test_without_an_access_file_callers_need_no_token(paper: LocalServices) -> None:
    assert "SLIPSTREAM_ORCHESTRATOR_ACCESS" not in os.environ
    with grpc.insecure_channel(paper.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        assert stub.GetServerInfo(pb.GetServerInfoRequest()).version
