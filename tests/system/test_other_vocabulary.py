"""A draft with another vocabulary beside the embedded target: its hints are translated, and the
text stays what the target says alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from proving.pairs import OTHER_VOCABULARY
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

QUESTIONS = ("What does os.path.join do?", "Explain json.dumps.", "What is asyncio.gather for?")
LONG = Settings(max_token_count=40, ignore_end_tokens=True)
PAIR = PairSettings(draft=str(OTHER_VOCABULARY), dtype="float32", target_flags=["--threads", "1"])


@pytest.fixture(scope="module")
def local() -> Iterator[LocalServices]:
    with LocalServices(PAIR) as local:
        yield local


@pytest.fixture(scope="module")
def client(local: LocalServices) -> Iterator[Client]:
    with Client(local.orchestrator_address) as client:
        deadline = time.monotonic() + 120
        while not client.server_info().HasField("draft"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield client


def said(client: Client, settings: Settings) -> list[Result]:
    return [client.answer([("user", question)], settings).wait() for question in QUESTIONS]


@pytest.mark.essential
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_are_the_targets_own_and_hints_are_accepted(client: Client, temperature: float) -> None:
    plain, fixed, adaptive = (
        said(client, replace(LONG, temperature=temperature, seed=3, draft_length=length)) for length in (0, 4, None)
    )
    assert [each.token_ids for each in fixed] == [each.token_ids for each in plain]
    assert [each.token_ids for each in adaptive] == [each.token_ids for each in plain]
    assert sum(each.accepted_token_count for each in fixed) > 10


def test_the_draft_says_that_it_translates_and_hands_out_the_targets_tokenizer(local: LocalServices) -> None:
    assert len(local.remarks) == 1
    assert "2048 tokens for a target with 4096" in local.remarks[0]
    infos, files = [], []
    for address in (local.verifier_address, local.draft_address):
        with grpc.insecure_channel(address) as channel:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            infos.append(stub.GetModelInfo(model_pb2.GetModelInfoRequest()).model)
            chunks = stub.GetTokenizer(model_pb2.GetTokenizerRequest())
            files.append(b"".join(chunk.data for chunk in chunks))
    target, draft = infos
    assert draft.tokenizer_fingerprint == target.tokenizer_fingerprint
    assert (draft.vocabulary_size, list(draft.end_token_ids)) == (4096, [2])
    assert draft.name == str(OTHER_VOCABULARY)
    assert (target.hints_only, draft.hints_only) == (False, True)
    assert files[0] == files[1]


def test_a_conversation_goes_on_over_several_turns(client: Client) -> None:
    texts = []
    for length in (0, 4):
        with client.chat(settings=Settings(max_token_count=24, draft_length=length)) as chat:
            results = [chat.send(question).wait() for question in (*QUESTIONS, "Zürich 🙂 東京?")]
        texts.append([result.text for result in results])
        accepted = sum(result.accepted_token_count for result in results)
    assert texts[0] == texts[1]
    assert accepted > 5


def test_the_ratio_test_decodes_plainly_and_leaves_the_draft_to_others(client: Client) -> None:
    """The draft is not asked: its odds are over its own tokens. It is not taken for broken."""
    settings = Settings(max_token_count=12, temperature=0.8, seed=5, ratio=True, draft_length=3)
    result = client.answer([("user", QUESTIONS[0])], settings).wait()
    assert len(result.token_ids) > 4
    assert result.draft_token_count == 0
    again = said(client, Settings(max_token_count=20, draft_length=4))
    assert sum(each.accepted_token_count for each in again) > 5


def test_a_killed_draft_changes_no_text(local: LocalServices, client: Client) -> None:
    settings = replace(LONG, draft_length=4)
    plain = said(client, replace(LONG, draft_length=0))
    local.services["draft"].process.kill()
    assert [each.token_ids for each in said(client, settings)] == [each.token_ids for each in plain]
    local.start_draft().wait_until_healthy()
    deadline = time.monotonic() + 120
    while not sum(each.accepted_token_count for each in said(client, settings)):
        assert time.monotonic() < deadline, "the draft does not come back"
