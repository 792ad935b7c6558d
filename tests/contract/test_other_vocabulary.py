"""A draft with another vocabulary over a real socket: the embedded draft, for a caller whose tokens
are bytes. It speaks the caller's tokens and positions, and its guesses are the draft's own text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from draft_service.translation.spelling import Spelling
from draft_service.translation.translated import TwoVocabularies
from slipstream.agreed import PEER_KEY
from slipstream.engine.host import HostLimits
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc
from tests.contract.test_draft import Stream, load_embedded
from tests.contract.test_handles import OURS, RATIO, Services

BYTES = load_tokenizer_files("arithmetic:ends=0")
OWN = load_tokenizer_files(str(embedded_directory("draft")))
CALLER, DRAFT = Spelling(BYTES), Spelling(OWN)
END = 2
QUESTION = "<|im_start|>user\nWhat does os.path.join do?<|im_end|>\n<|im_start|>assistant\n"


def said_in_bytes(text: str) -> list[int]:
    return CALLER.encode(text).tokens


def text_of(tokens: Sequence[int]) -> str:
    return CALLER.text_bytes(tokens).decode(errors="replace")


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services(HostLimits(sweep_seconds=0.02))
    await services.start(load_draft=load_embedded, tokenizers=(BYTES, OWN))
    yield services
    await services.stop()


async def started(services: Services, number: int = 1, text: str = QUESTION, **fields: Any) -> Stream:
    stream = Stream(services)
    tail = said_in_bytes(text)
    await stream.start(number, **{"tail": tail, "least_length": 12, "until_length": 4000, **fields})
    return stream


async def own_answer(count: int) -> str:
    """Return the draft's answer to a peer that speaks the draft's own tokens."""
    services = Services(HostLimits())
    await services.start(load_draft=load_embedded)
    try:
        stream = Stream(services)
        tokens = DRAFT.encode(QUESTION).tokens
        await stream.start(1, tail=tokens, size=4096, least_length=count, until_length=4000)
        return DRAFT.text_bytes((await stream.hint(len(tokens), count)).tokens).decode()
    finally:
        await services.stop()


async def test_hints_are_the_drafts_text_in_the_callers_tokens(services: Services) -> None:
    expected = await own_answer(12)
    stream = await started(services)
    length = len(said_in_bytes(QUESTION))
    hint = await stream.hint(length, 16)
    text = text_of(hint.tokens)
    assert expected.startswith(text) or text.startswith(expected)
    assert sorted(hint.survivals, reverse=True) == list(hint.survivals)
    assert (hint.start, hint.length_seen) == (length, length)


async def test_hints_follow_commits_wherever_they_fall(services: Services) -> None:
    """Commits end within words, and within tokens of the draft. The last letters are wrong: then
    the draft says what it says to one that states the whole text."""
    stream = await started(services)
    first = text_of((await stream.hint(len(said_in_bytes(QUESTION)), 16)).tokens)
    committed = QUESTION
    for piece in (first[:3], first[3:9], first[9:10], "zq"):
        await stream.commit(1, len(said_in_bytes(committed)), said_in_bytes(piece))
        committed += piece
    length = len(said_in_bytes(committed))
    text = text_of((await stream.hint(length, 4)).tokens)
    later = await started(services, 2, committed)
    again = text_of((await later.hint(length, 4)).tokens)
    assert again.startswith(text) or text.startswith(again)


async def test_an_end_is_the_callers_end_token(services: Services) -> None:
    rule = SamplingRule(end_token_ids=(END,))
    question = QUESTION + await own_answer(40)
    stream = await started(services, text=question, rule=rule, least_length=64)
    result = await stream.hear(lambda result: any(END in hint.tokens for hint in result.hints))
    hint = next(hint for hint in result.hints if END in hint.tokens)
    assert list(hint.tokens).index(END) == len(hint.tokens) - 1


async def test_positions_and_lengths_are_the_callers(services: Services) -> None:
    stream = await started(services)
    length = len(said_in_bytes(QUESTION))
    await stream.hint(length, 4)
    await stream.commit(1, length + 3, [70])
    short = (await stream.last(1)).error.SerializeToString()
    assert b"SEQUENCE_TOO_SHORT" in short and str(length).encode() in short
    await stream.start(2, base_length=length - 5, tail=said_in_bytes("ant\nA"), until_length=length + 3, least_length=8)
    hint = await stream.hint(length, 1)
    assert hint.start + len(hint.tokens) <= length + 3
    await stream.start(3, base_length=length + 50, tail=[70])
    short = (await stream.last(3)).error.SerializeToString()
    assert b"SEQUENCE_TOO_SHORT" in short and str(length).encode() in short


@pytest.mark.parametrize(
    "tail",
    [[0], [1, 1, 1], [2**31 - 1], [300] * 9, [128 + 60] * 5],
    ids=["padding", "starts", "no token", "no tokens", "half a character"],
)
async def test_tokens_without_text_are_no_error(services: Services, tail: list[int]) -> None:
    stream = Stream(services)
    await stream.start(1, tail=tail, until_length=4000, least_length=8)
    await stream.commit(1, len(tail), said_in_bytes(QUESTION))
    await stream.hint(len(tail) + len(said_in_bytes(QUESTION)), 4)


async def test_rules_over_the_callers_tokens_hold_no_hint_up(services: Services) -> None:
    rule = SamplingRule(
        temperature=1.0,
        seed=5,
        end_token_ids=(END,),
        logit_bias=((70, 3.0), (258, -2.0)),
        banned_token_ids=(80, 2**20),
        first_generated_position=10,
        first_end_position=300,
        presence_penalty=0.5,
        structure=Structure(StructureKind.REGEX, "[a-z ]+"),
    )
    stream = await started(services, rule=rule, size=2**31 - 1)
    await stream.hint(len(said_in_bytes(QUESTION)), 4)


async def test_the_ratio_test_is_refused_by_name(services: Services) -> None:
    """The draft's odds are over its own tokens, which the target cannot test."""
    rule = rule_message(RATIO, 259)
    stub = draft_pb2_grpc.DraftServiceStub(services.channel)
    call = stub.Propose(metadata=((PEER_KEY, OURS),))
    item = draft_pb2.ProposeItem(
        handle="a" * 32, round=1, tail=said_in_bytes("a"), draft_length=3, rule=rule, rule_hash=rule_hash(rule), open={}
    )
    await call.write(draft_pb2.ProposeRequest(items=[item]))
    response = await asyncio.wait_for(call.read(), 10)
    assert isinstance(response, draft_pb2.ProposeResponse)
    error = response.results[0].error.SerializeToString()
    assert b"rule.acceptance" in error and b"another vocabulary" in error
    call.cancel()


async def test_a_closed_handle_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    doors: list[TwoVocabularies] = []

    class Door(TwoVocabularies):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            doors.append(self)

    monkeypatch.setattr("draft_service.service.TwoVocabularies", Door)
    services = Services(HostLimits())
    await services.start(load_draft=load_embedded, tokenizers=(BYTES, OWN))
    try:
        stream = await started(services)
        await stream.hint(len(said_in_bytes(QUESTION)), 4)
        assert len(doors[0]._translations) == 1
        await stream.say(1, close={})
        await stream.last(1)
        assert not doors[0]._translations
    finally:
        await services.stop()
