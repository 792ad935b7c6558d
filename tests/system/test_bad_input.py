"""Bad input gets a clear status with its reason and field names, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.cli.service_process import ServiceFailedError
from slipstream.client import Client, PeerError, Settings
from slipstream.errors import Code
from slipstream.sampling.rule import SamplingRule
from slipstream.v1 import generation_pb2, session_pb2
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.wire.v1 import draft_pb2, model_pb2, rule_pb2, verifier_pb2
from tests.system.conftest import (
    LASTING,
    PAPER_PAIR,
    first_propose,
    first_verify,
    load_of,
    new_handle,
    paper_tokens,
    propose_one,
    settled_load_of,
    stated,
    verify_one,
)

PROMPT = [10, 20, 30]


def refusal(call: Callable[[], object]) -> tuple[str, str, list[str]]:
    """Status code, ErrorInfo reason and bad fields of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return details_of(caught.value)


def details_of(error: grpc.RpcError) -> tuple[str, str, list[str]]:
    status = rpc_status.from_call(error)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    assert info.domain == "slipstream"
    return Code(status.code).name, info.reason, [violation.field for violation in bad.field_violations]


def generate(client: Client, **fields: object) -> list[pb.GenerateResponse]:
    request = pb.GenerateRequest(**fields)
    if not request.WhichOneof("prompt"):
        request.tokens.token_ids.extend(PROMPT)
    return list(client.stub.Generate(request))


SETTINGS = [
    (generation_pb2.GenerationSettings(sampling={"temperature": -1}), "settings.sampling.temperature"),
    (generation_pb2.GenerationSettings(acceptance=7), "settings.acceptance"),
    (generation_pb2.GenerationSettings(speculation={"proposer": -1}), "settings.speculation.proposer"),
    (generation_pb2.GenerationSettings(cleared={"paths": ["no_such_field"]}), "settings.cleared"),
    (generation_pb2.GenerationSettings(max_token_count=1, cleared={"paths": ["max_token_count"]}), "settings.cleared"),
    (generation_pb2.GenerationSettings(sampling={"seed": -5}), "settings.sampling.seed"),
    (generation_pb2.GenerationSettings(sampling={"top_p": 0}), "settings.sampling.top_p"),
    (generation_pb2.GenerationSettings(max_token_count=0), "settings.max_token_count"),
    (generation_pb2.GenerationSettings(stop_strings=[""]), "settings.stop_strings"),
    (generation_pb2.GenerationSettings(speculation={"fixed": {"length": 65}}), "settings.speculation.fixed.length"),
    (generation_pb2.GenerationSettings(speculation={"fixed": {}}), "settings.speculation.fixed.length"),
]


@pytest.mark.parametrize(
    ("settings", "field"), SETTINGS, ids=[f"{index} {field}" for index, (_, field) in enumerate(SETTINGS)]
)
@pytest.mark.essential
def test_a_bad_setting_is_named_wherever_it_is_said(
    client: Client, settings: generation_pb2.GenerationSettings, field: str
) -> None:
    new = pb.CreateSessionRequest(settings=settings)
    for call in (lambda: generate(client, settings=settings), lambda: client.stub.CreateSession(new)):
        assert refusal(call) == ("INVALID_ARGUMENT", "INVALID_FIELDS", [field])


def test_an_empty_prompt_is_named(client: Client) -> None:
    assert refusal(lambda: list(client.stub.Generate(pb.GenerateRequest())))[2] == ["prompt"]
    assert refusal(lambda: generate(client, text=""))[2] == ["text"]
    assert refusal(lambda: generate(client, conversation=pb.MessageList()))[2] == ["conversation"]


def test_a_prediction_is_named_that_cannot_be_used(client: Client) -> None:
    """The paper model's texts are its tokens."""
    ratio = generation_pb2.GenerationSettings(acceptance="ACCEPTANCE_RATIO")
    unknown = pb.Prediction(tokens={"token_ids": [5, 259]})
    session_id = client.stub.CreateSession(pb.CreateSessionRequest(settings=ratio)).session.id
    message = pb.SendMessageRequest(session_id=session_id, content="x", prediction={"text": "y"})
    assert refusal(lambda: generate(client, prediction=unknown))[2] == ["prediction.tokens.token_ids"]
    assert refusal(lambda: generate(client, prediction=pb.Prediction()))[2] == ["prediction"]
    assert refusal(lambda: generate(client, prediction={"text": "y"}, settings=ratio))[2] == ["prediction"]
    assert refusal(lambda: list(client.stub.SendMessage(message)))[2] == ["prediction"]
    assert generate(client, prediction={"text": "y"}, settings={"max_token_count": 3})[-1].event.HasField("finished")


def test_bad_messages_are_named(client: Client) -> None:
    messages = [session_pb2.Message(role=7, content="x"), session_pb2.Message(role="ROLE_ASSISTANT", content="")]
    assert refusal(lambda: generate(client, conversation=pb.MessageList(messages=messages)))[2] == [
        "conversation.messages[0].role",
        "conversation.messages[1].content",
        "conversation.messages[1].role",
    ]


def test_a_token_outside_the_vocabulary_is_refused(client: Client) -> None:
    assert refusal(lambda: generate(client, tokens=pb.TokenList(token_ids=[5, 259])))[2] == ["tokens.token_ids"]


def test_a_prompt_over_the_context_is_refused_with_both_lengths(client: Client) -> None:
    code, reason, fields = refusal(lambda: generate(client, tokens=pb.TokenList(token_ids=[5] * 8192)))
    assert (code, reason, fields) == ("INVALID_ARGUMENT", "PROMPT_TOO_LONG", ["prompt"])


def test_a_text_that_could_hardly_fit_is_refused_before_it_is_looked_at(client: Client) -> None:
    most = 16 * 8192
    said = [session_pb2.Message(role="ROLE_USER", content="x" * (most // 2))] * 3
    session_id = client.stub.CreateSession(pb.CreateSessionRequest()).session.id
    message = pb.SendMessageRequest(session_id=session_id, content="x" * (most + 1))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("text", lambda: generate(client, text="x" * (most + 1))),
        ("text", lambda: client.stub.Tokenize(pb.TokenizeRequest(text="x" * (most + 1)))),
        ("conversation.messages", lambda: generate(client, conversation=pb.MessageList(messages=said))),
        ("conversation.messages", lambda: client.stub.Tokenize(pb.TokenizeRequest(conversation={"messages": said}))),
        ("content", lambda: list(client.stub.SendMessage(message))),
    ]
    for field, call in calls:
        assert refusal(call) == ("INVALID_ARGUMENT", "PROMPT_TOO_LONG", [field])
    system = pb.CreateSessionRequest(system="x" * (most + 1))
    assert refusal(lambda: client.stub.CreateSession(system)) == ("INVALID_ARGUMENT", "PROMPT_TOO_LONG", ["system"])
    assert refusal(lambda: generate(client, text="x" * most))[1] == "PROMPT_TOO_LONG", "8,192 tokens are counted"


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({f"key {index}": "x" for index in range(17)}, "may have at most 16 entries, but has 17"),
        ({"": "x"}, "must have keys of 1 to 64 characters"),
        ({"é" * 65: "x"}, "must have keys of 1 to 64 characters"),
        ({"title": "é" * 513}, "must have values of at most 512 characters"),
    ],
    ids=["entries", "empty key", "long key", "long value"],
)
def test_metadata_beyond_its_bounds_is_named(client: Client, metadata: dict[str, str], what: str) -> None:
    chat = pb.ChatRequest(start={"metadata": metadata})
    with pytest.raises(PeerError, match=what) as caught:
        client.create_session(metadata=metadata)
    assert [violation.field for violation in caught.value.violations] == ["metadata"]
    (failed,) = client.stub.Chat(iter([chat]))
    assert what in failed.failed.error.message


def test_a_resumed_chat_takes_no_metadata(client: Client) -> None:
    session = client.create_session()
    start = pb.StartChat(session_id=session.session_id, metadata={"title": "x"})
    (failed,) = client.stub.Chat(iter([pb.ChatRequest(start=start)]))
    assert "start.metadata must not be set when a session is resumed" in failed.failed.error.message
    with pytest.raises(PeerError, match="metadata must be left out"):
        client.chat(session_id=session.session_id, metadata={"title": "x"})


def test_what_cannot_be_tokenized_is_named(client: Client) -> None:
    def asked(**fields: object) -> list[str]:
        code, reason, bad = refusal(lambda: client.stub.Tokenize(pb.TokenizeRequest(**fields)))
        assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELDS")
        return bad

    said = {"messages": [{"role": "ROLE_USER", "content": "x"}]}
    assert asked() == ["prompt"]
    assert asked(conversation={}) == ["conversation.messages"]
    assert asked(conversation={"messages": [{"role": 9, "content": "x"}]}) == ["conversation.messages[0].role"]
    assert asked(conversation=said, add_special_tokens=False) == ["add_special_tokens"]
    assert asked(text="x", add_generation_prompt=False, template_time={}) == ["add_generation_prompt", "template_time"]
    for tokens, field in (([5, 259], "token_ids[1]"), ([-1], "token_ids[0]"), ([5] * (2**18 + 1), "token_ids")):
        request = pb.DetokenizeRequest(token_ids=tokens)
        assert refusal(partial(client.stub.Detokenize, request)) == ("INVALID_ARGUMENT", "INVALID_FIELDS", [field])


def test_tokens_come_back_as_the_text_that_they_were(client: Client) -> None:
    """As many as the largest request may have: the answer is small enough for every client."""
    told = client.tokenize("x" * 16 * 8192, token_strings=True)
    assert len(told.token_ids) == len(told.token_strings) >= 16 * 8192 and told.context_length == 8192
    assert client.detokenize(told.token_ids).endswith("x" * 16 * 8192)
    assert len(client.detokenize(told.token_ids[-1:] * 2**18)) == 2**18


def test_lists_of_millions_are_refused_by_their_lengths(client: Client) -> None:
    many = generation_pb2.GenerationSettings(
        sampling={
            "logit_bias": dict.fromkeys(range(8193), 1.0),
            "allowed_token_ids": range(8193),
            "banned_token_ids": range(8193),
        },
        stop_token_ids=range(8193),
        stop_strings=["x"] * 8193,
    )
    lists = ["sampling.logit_bias", "sampling.allowed_token_ids", "sampling.banned_token_ids", "stop_strings"]
    named = [f"settings.{name}" for name in (*lists, "stop_token_ids")]
    assert refusal(lambda: generate(client, settings=many)) == ("INVALID_ARGUMENT", "INVALID_FIELDS", named)
    tokens = pb.TokenList(token_ids=[5] * (2**20 + 1))
    assert refusal(lambda: generate(client, tokens=tokens))[2] == ["tokens.token_ids"]
    said = pb.MessageList(messages=[session_pb2.Message(role="ROLE_USER", content="x")] * 4097)
    assert refusal(lambda: generate(client, conversation=said))[2] == ["conversation.messages"]


def test_a_message_larger_than_any_prompt_is_not_even_read(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        generate(client, text="x" * (16 * 2**20))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(generate(client)) > 1, "the connection goes on"


def test_unknown_sessions_are_not_found_everywhere(client: Client) -> None:
    stub = client.stub
    for call in (
        lambda: stub.GetSession(pb.GetSessionRequest(session_id="unknown")),
        lambda: stub.DeleteSession(pb.DeleteSessionRequest(session_id="unknown")),
    ):
        assert refusal(call)[:2] == ("NOT_FOUND", "SESSION_NOT_FOUND")
    with pytest.raises(PeerError) as caught:
        client.chat(session_id="unknown")
    assert caught.value.reason == "SESSION_NOT_FOUND"


def test_bad_pages_of_a_list_are_named(client: Client) -> None:
    assert refusal(lambda: client.stub.ListSessions(pb.ListSessionsRequest(page_size=-1)))[2] == ["page_size"]
    assert refusal(lambda: client.stub.ListSessions(pb.ListSessionsRequest(page_token="x")))[2] == ["page_token"]


def refusals(events: Iterable[pb.ChatResponse]) -> dict[str, str]:
    """The reasons of a chat's failed commands, by their request_id."""
    reasons = {}
    for event in events:
        if event.WhichOneof("event") == "failed":
            info = error_details_pb2.ErrorInfo()
            event.failed.error.details[0].Unpack(info)
            reasons[event.failed.request_id] = info.reason
    return reasons


def test_a_chat_survives_its_bad_commands_and_says_which_failed(client: Client) -> None:
    cold = {"sampling": {"temperature": -1}}
    session = client.stub.CreateSession(pb.CreateSessionRequest()).session.id

    def commands() -> Iterator[pb.ChatRequest]:
        yield pb.ChatRequest(request_id="early", message={"content": "too early"})
        yield pb.ChatRequest(request_id="cold start", start={"settings": cold})
        yield pb.ChatRequest(request_id="cold resumption", start={"session_id": session, "settings": cold})
        yield pb.ChatRequest(request_id="start", start={})
        yield pb.ChatRequest(request_id="again", start={})
        yield pb.ChatRequest(request_id="nothing")
        yield pb.ChatRequest(request_id="nameless", cancel={})
        yield pb.ChatRequest(request_id="unknown", cancel={"request_id": "never sent"})
        yield pb.ChatRequest(request_id="none", cancel={"turn": 7})
        yield pb.ChatRequest(request_id="empty", message={"content": ""})
        yield pb.ChatRequest(request_id="cold", message={"content": "x", "settings": cold})
        yield pb.ChatRequest(request_id="long", message={"content": "y" * 9000})
        yield pb.ChatRequest(request_id="good", message={"content": "x", "settings": {"max_token_count": 3}})

    events = list(client.stub.Chat(commands()))
    assert refusals(events) == {
        "early": "CHAT_PROTOCOL",
        "cold start": "INVALID_FIELDS",
        "cold resumption": "INVALID_FIELDS",
        "again": "CHAT_PROTOCOL",
        "nothing": "INVALID_FIELDS",
        "nameless": "INVALID_FIELDS",
        "unknown": "TURN_NOT_FOUND",
        "none": "TURN_NOT_FOUND",
        "empty": "INVALID_FIELDS",
        "cold": "INVALID_FIELDS",
        "long": "PROMPT_TOO_LONG",
    }
    assert events[-1].turn.finished.usage.generated_token_count == 3
    assert {event.turn.turn for event in events if event.HasField("turn")} == {1}


def test_long_messages_of_one_chat_do_not_pile_up(client: Client) -> None:
    content = "x" * (2**19 - 1)  # two of them fit
    runs = threading.Event()

    def commands() -> Iterator[pb.ChatRequest]:
        yield pb.ChatRequest(start={})
        yield pb.ChatRequest(request_id="runs", message={"content": "x", "settings": LASTING.message()})
        runs.wait()  # a cancel that comes before the turn's beginning is answered otherwise
        for number in range(4):
            yield pb.ChatRequest(request_id=str(number), message={"content": content})
        yield pb.ChatRequest(cancel={"request_id": "runs"})

    def watched(responses: Iterable[pb.ChatResponse]) -> Iterator[pb.ChatResponse]:
        for response in responses:
            if response.turn.HasField("started"):
                runs.set()
            yield response

    assert refusals(watched(client.stub.Chat(commands()))) == {
        "0": "PROMPT_TOO_LONG",
        "1": "PROMPT_TOO_LONG",
        "2": "CHAT_QUEUE_FULL",
        "3": "CHAT_QUEUE_FULL",
    }


def test_one_of_two_messages_at_once_gets_the_turn(client: Client) -> None:
    """Both are tokenized beside the event loop before either begins; the turn lasts until its
    session is deleted."""
    content = "two at once " * 200

    def send(session_id: str, name: str) -> int | str:
        request = pb.SendMessageRequest(
            session_id=session_id, request_id=name, content=content, settings=LASTING.message()
        )
        try:
            return next(iter(client.stub.SendMessage(request))).event.turn
        except grpc.RpcError as error:
            return details_of(error)[1]

    def both(*names: str) -> list[int | str]:
        session_id = client.stub.CreateSession(pb.CreateSessionRequest()).session.id
        sent = [threads.submit(send, session_id, name) for name in names]
        results = [each.result() for each in sent]
        client.stub.DeleteSession(pb.DeleteSessionRequest(session_id=session_id))
        return results

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            assert sorted(map(str, both("one", "other"))) == ["1", "SESSION_BUSY"]
            assert both("same", "same") == [1, 1]


def test_a_session_runs_one_turn_at_a_time(client: Client) -> None:
    with client.chat(settings=LASTING) as chat:
        pieces = iter(chat.send("x"))
        next(pieces)
        with client.chat(session_id=chat.session_id) as other, pytest.raises(PeerError) as caught:
            other.send("y").wait()
        assert caught.value.reason == "SESSION_BUSY"
        chat.cancel()
        for _ in pieces:
            pass


def test_garbage_on_a_stream_ends_that_stream_alone(client: Client, paper: LocalServices) -> None:
    for address, method in (
        (paper.orchestrator_address, "slipstream.v1.OrchestratorService/Chat"),
        (paper.verifier_address, "slipstream.wire.v1.VerifierService/Verify"),
        (paper.draft_address, "slipstream.wire.v1.DraftService/Propose"),
    ):
        with grpc.insecure_channel(address) as channel:
            raw: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{method}")
            with pytest.raises(grpc.RpcError):
                list(raw(iter([b"\xff\xfe garbage", b"\x00"]), timeout=10))
    assert client.generate(PROMPT, Settings(max_token_count=5)).wait().token_ids == paper_tokens(PROMPT, 5)


def reason_of(result: verifier_pb2.VerifyResult | draft_pb2.ProposeResult) -> str:
    """The reason of a result's error; empty where there is none."""
    info = error_details_pb2.ErrorInfo()
    if result.HasField("error"):
        result.error.details[0].Unpack(info)
    return str(info.reason)


def test_an_item_opens_a_handle_of_the_callers_own_name_and_another_closes_it(paper: LocalServices) -> None:
    name, item = new_handle(), verifier_pb2.VerifyItem
    stranger = model_pb2.OpenSequence(tokenizer_fingerprint="another")
    before = load_of(paper.verifier_address).sequence_count
    with grpc.insecure_channel(paper.verifier_address) as channel:
        items = [
            item(handle=name, round=1, tail=[5, 6], **stated()),
            first_verify(handle=name, round=2, tail=[5, 6], open=stranger),
            first_verify(handle="short", round=3, tail=[5, 6]),
            first_verify(handle=name, round=4, tail=[5, 6]),
            first_verify(handle=name, round=5, tail=[7], base_length=2),
            item(handle=name, round=6, tail=[8], base_length=3, **stated()),
        ]
        reasons = [reason_of(verify_one(channel, item)) for item in items]
        during = load_of(paper.verifier_address).sequence_count
        for number in (7, 8):  # an unknown handle's pages are back already
            closed = verify_one(channel, item(handle=name, round=number, close=model_pb2.CloseSequence()))
            assert (closed.handle, closed.round, closed.HasField("error")) == (name, number, False)
    assert reasons == ["UNKNOWN_HANDLE", "TOKENIZER_MISMATCH", "INVALID_FIELDS", "", "", ""]
    assert during == before + 1
    assert load_of(paper.verifier_address).sequence_count == before


def test_a_handle_is_told_a_rule_once_and_knows_its_last_four(paper: LocalServices) -> None:
    name, item = new_handle(), verifier_pb2.VerifyItem
    first, *others = (stated(SamplingRule(temperature=0.5, seed=seed)) for seed in range(5))
    with grpc.insecure_channel(paper.verifier_address) as channel:

        def verify(number: int, **fields: object) -> verifier_pb2.VerifyResult:
            return verify_one(channel, item(handle=name, round=number, tail=[5, 6, 7], **fields))

        told = verify(1, open=model_pb2.OpenSequence(), **first)
        named = verify(2, rule_hash=first["rule_hash"])
        assert told.next_token == named.next_token
        assert reason_of(verify(3, rule_hash=others[0]["rule_hash"])) == "UNKNOWN_RULE"
        assert reason_of(verify(4)) == "INVALID_FIELDS"
        answers = [verify(5 + index, **other) for index, other in enumerate(others)]
        assert not any(map(reason_of, answers))
        assert reason_of(verify(9, rule_hash=first["rule_hash"])) == "UNKNOWN_RULE", "four others came since"
        assert verify(10, rule_hash=others[0]["rule_hash"]).next_token == answers[0].next_token
        verify_one(channel, item(handle=name, round=11, close=model_pb2.CloseSequence()))
        assert reason_of(verify(12, rule_hash=first["rule_hash"])) == "UNKNOWN_HANDLE"


def test_a_rule_leaves_nothing_open_and_knows_no_stranger(paper: LocalServices) -> None:
    name = new_handle()

    def refusal_of(message: rule_pb2.SamplingRule) -> list[str]:
        result = verify_one(channel, first_verify(handle=name, round=1, tail=[5], rule=message, rule_hash=1))
        bad = error_details_pb2.BadRequest()
        assert any(detail.Unpack(bad) for detail in result.error.details), result
        return [violation.field for violation in bad.field_violations]

    with grpc.insecure_channel(paper.verifier_address) as channel:
        message = stated()["rule"]
        message.sampling.ClearField("top_p")
        message.sampling.ClearField("seed")
        assert refusal_of(message) == ["rule.sampling.top_p", "rule.sampling.seed"]
        for value in (0, 7):
            message = stated()["rule"]
            message.acceptance = value
            assert refusal_of(message) == ["rule.acceptance"]
        assert refusal_of(stated(SamplingRule(temperature=-1, proposal_top_k=0))["rule"]) == [
            "rule.sampling.temperature",
            "rule.proposal_top_k",
        ]
        strangers = SamplingRule(end_token_ids=(259,), banned_token_ids=(5, 300), allowed_token_ids=(258,))
        assert refusal_of(stated(strangers)["rule"]) == ["rule.end_token_ids", "rule.sampling.banned_token_ids"]
        verify_one(channel, verifier_pb2.VerifyItem(handle=name, round=2, close=model_pb2.CloseSequence()))


@pytest.mark.essential
def test_a_bad_item_fails_alone_and_in_band(paper: LocalServices) -> None:
    handle = new_handle()
    wrong_end = SamplingRule(end_token_ids=(259,), first_end_position=99)
    items = [
        first_verify(handle=handle, round=1, tail=[5, 6]),
        verifier_pb2.VerifyItem(handle="unknown", round=1, tail=[5], **stated()),
        first_verify(handle=handle, round=2, tail=[]),
        first_verify(handle=handle, round=3, tail=[5], base_length=-1),
        first_verify(handle=handle, round=4, tail=[5], base_length=7),
        first_verify(handle=handle, round=5, tail=[259]),
        first_verify(handle=handle, round=6, tail=[5], proposal=[5] * 65),
        first_verify(handle=handle, round=7, tail=[5], **stated(SamplingRule(temperature=-1))),
        first_verify(handle=handle, round=8, tail=[5] * 9000),
        first_verify(handle=handle, round=9, tail=[5], **stated(wrong_end)),
        first_verify(handle=handle, round=10, tail=[5, 6]),
        verifier_pb2.VerifyItem(handle=handle, round=11, close=model_pb2.CloseSequence()),
    ]
    # One message each, so that no item overtakes another.
    with grpc.insecure_channel(paper.verifier_address) as channel:
        reasons = [reason_of(verify_one(channel, item)) for item in items]
    assert reasons == [
        "",
        "UNKNOWN_HANDLE",
        "INVALID_ITEM",
        "INVALID_ITEM",
        "SEQUENCE_TOO_SHORT",
        "INVALID_ITEM",
        "INVALID_FIELDS",
        "INVALID_FIELDS",
        "CONTEXT_EXCEEDED",
        "INVALID_FIELDS",
        "",
        "",
    ]


def test_a_repeated_round_gets_its_stored_answer_and_an_older_one_is_refused(paper: LocalServices) -> None:
    handle = new_handle()
    with grpc.insecure_channel(paper.draft_address) as channel:

        def propose(number: int) -> draft_pb2.ProposeResult:
            return propose_one(channel, first_propose(handle=handle, round=number, tail=[7, 8, 9], draft_length=4))

        first = propose(5)
        steps = load_of(paper.draft_address).step_count
        assert propose(5) == first
        assert load_of(paper.draft_address).step_count == steps
        refused = propose(4)
        assert (Code(refused.error.code), reason_of(refused)) == (Code.ABORTED, "STALE_ROUND")
        propose_one(channel, draft_pb2.ProposeItem(handle=handle, round=6, close=model_pb2.CloseSequence()))


def info_once_the_draft_is_reached(client: Client) -> pb.GetServerInfoResponse:
    """Both models' description: the orchestrator serves without its draft where that one takes long
    to start."""
    deadline = time.monotonic() + 60
    while not (info := client.server_info()).HasField("draft"):
        assert time.monotonic() < deadline, "the draft was not reached within 60 s"
        time.sleep(0.1)
    return info


def test_a_draft_whose_tokenizer_differs_is_refused_naming_both_and_the_flag_that_helps() -> None:
    not_told = ("--target-tokenizer", "")
    pair = PairSettings(target="arithmetic:ends=0", draft="embedded", dtype="float32", draft_flags=not_told)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        info = info_once_the_draft_is_reached(client)
        with pytest.raises(PeerError) as caught:
            client.generate(PROMPT).wait()
        assert caught.value.reason == "TOKENIZER_MISMATCH"
        assert info.target.tokenizer_fingerprint in str(caught.value)
        assert info.draft.tokenizer_fingerprint in str(caught.value)
        assert "--target-tokenizer arithmetic:ends=0" in str(caught.value)
        off = client.generate(PROMPT, Settings(max_token_count=5, draft_length=0)).wait()
        assert off.token_ids == paper_tokens(PROMPT, 5)
        with grpc.insecure_channel(local.draft_address) as channel:
            terms = model_pb2.OpenSequence(tokenizer_fingerprint=info.target.tokenizer_fingerprint)
            item = first_propose(handle=new_handle(), round=1, tail=[5], draft_length=1, open=terms)
            refused = propose_one(channel, item)
            assert (Code(refused.error.code), reason_of(refused)) == (Code.FAILED_PRECONDITION, "TOKENIZER_MISMATCH")


def run_service(module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", module, *flags], capture_output=True, text=True, timeout=60, env=offline
    )


def test_a_port_in_use_is_told_in_one_line(paper: LocalServices) -> None:
    ended = run_service("verifier_service", "--model", "arithmetic:", "--address", paper.verifier_address)
    assert ended.returncode == 1
    assert f"cannot listen on {paper.verifier_address}: it is in use" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "/no/such/model"], "verifier: no model directory at /no/such/model: "),
        (["--model", "no-such/model"], "verifier: no model directory at no-such/model, and no such model in the hub's"),
        (
            ["--model", "arithmetic:", "--dtype", "float16"],
            "verifier: --dtype should be 'float32' or 'bfloat16', but is",
        ),
        (["--model", "arithmetic:vocabulary=100"], "knows 259 tokens, but its embedding and logits have 100 rows"),
        ([], "verifier: --model is needed"),
        (["--model", "arithmetic:speed=9"], "has no key 'speed'; it has vocabulary, context"),
        (["--model", "arithmetic:", "--page-size", "24"], "page_size must divide 128, but is 24"),
        (["--model", "arithmetic:", "--kv-memory-mib", "0.00001"], "holds no page"),
    ],
)
def test_a_service_that_cannot_start_says_why_in_one_line(flags: list[str], message: str) -> None:
    ended = run_service("verifier_service", "--address", "127.0.0.1:0", *flags)
    assert ended.returncode == 1
    assert message in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_the_orchestrator_waits_for_the_verifier_and_says_so() -> None:
    services = LocalServices(PAPER_PAIR)
    try:
        orchestrator = services.start_orchestrator()
        with Client(services.orchestrator_address) as client:
            deadline = time.monotonic() + 30
            while (
                "waiting for the verifier service at " + services.verifier_address not in orchestrator.log.read_text()
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            code, reason, _ = refusal(lambda: generate(client))
            assert (code, reason) == ("UNAVAILABLE", "NOT_READY")
            services.start_verifier()
            services.start_draft()
            orchestrator.wait_until_healthy()
            assert client.generate(PROMPT, Settings(max_token_count=5)).wait().token_ids == paper_tokens(PROMPT, 5)
    finally:
        services.stop()


@pytest.mark.parametrize("role", ["verifier", "draft"])
def test_a_service_that_ends_early_is_reported_in_its_own_words(role: str) -> None:
    models = {"target": "arithmetic:", "draft": "arithmetic:"} | {role.replace("verifier", "target"): "/no/such/model"}
    with pytest.raises(ServiceFailedError) as caught, LocalServices(PairSettings(**models)):
        pass
    assert str(caught.value).startswith(f"{role}: no model directory at /no/such/model: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_service_that_gives_no_reason_is_reported_with_the_end_of_its_log() -> None:
    with pytest.raises(ServiceFailedError) as caught, LocalServices(PairSettings(draft_flags=["--no-such-flag"])):
        pass
    assert str(caught.value).startswith("the draft service ended:\n")
    assert "unrecognized arguments: --no-such-flag" in str(caught.value)


def test_an_address_without_a_listener_is_unavailable() -> None:
    with Client(free_address()) as client, pytest.raises(PeerError) as caught:
        client.generate("x").wait()
    assert caught.value.code is Code.UNAVAILABLE


def test_a_client_that_vanishes_in_mid_answer_leaves_no_pages_behind(client: Client, paper: LocalServices) -> None:
    addresses = (paper.verifier_address, paper.draft_address)
    before = [settled_load_of(address).held_page_count for address in addresses]
    with Client(paper.orchestrator_address) as vanishing:
        pieces = iter(vanishing.generate([77] * 100, LASTING))
        next(pieces)
        assert load_of(paper.verifier_address).held_page_count > before[0]
    assert [settled_load_of(address).held_page_count for address in addresses] == before
