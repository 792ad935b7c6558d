"""What a caller expects of an answer: checked at the door, kept for its turn, stored nowhere."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from orchestrator.contract.commands import command_of, generation_of, message_of
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.terms import Prediction
from orchestrator.sessions.admission.principal import ANONYMOUS, Principal
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import from_user
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.entrance.chat_commands import BadCommand, SendMessage
from orchestrator.sessions.entrance.requests import UserMessage
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.predictions import MAX_PREDICTION_TOKENS, prediction_of, source_id_of
from slipstream.client import requests
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.sampling.rule import Acceptance
from slipstream.structures.trials import StructureTrials
from slipstream.v1 import orchestrator_pb2 as pb
from tests.scripted_peers import MODEL, Draft, Verifier, rounds_over

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
IMAGE = "<image_soft_token>"


@pytest.fixture
def pair() -> Pair:
    """Its model has no row for the placeholder of an image, which its tokenizer knows."""
    tokenizer = Tokenizer.from_buffer(FILES["tokenizer.json"])
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([IMAGE])
    codec = Codec(tokenizer.to_str().encode(), json.loads(FILES["tokenizer_config.json"]), None)
    model = replace(MODEL, vocabulary_size=size, context_length=4096)
    structures = StructureTrials(FILES["tokenizer.json"], size, model.end_token_ids)
    return Pair(model, Drafts(), codec, rounds_over(Draft(), Verifier()), structures, 0, 8)


def resolved_of(pair: Pair, acceptance: Acceptance = Acceptance.COUPLED) -> ResolvedTurn:
    return pair.resolve_settings(GenerationSettings(acceptance=acceptance, max_token_count=4), 3)


async def refused_field(pair: Pair, said: str | array[int], acceptance: Acceptance = Acceptance.COUPLED) -> list[str]:
    with pytest.raises(InvalidFieldsError) as caught:
        await prediction_of(pair, said, resolved_of(pair, acceptance).terms.rule, ANONYMOUS)
    return [violation.field for violation in caught.value.violations]


def of_each_request(prediction: pb.Prediction) -> list[Any]:
    """What each kind of request makes of a prediction."""
    chat = pb.ChatRequest(message=pb.UserMessage(content="x", prediction=prediction))
    command = command_of(chat, lambda: ANONYMOUS)
    if isinstance(command, BadCommand):
        raise command.error
    assert isinstance(command, SendMessage)
    return [
        generation_of(pb.GenerateRequest(text="x", prediction=prediction), ANONYMOUS).prediction,
        message_of(pb.SendMessageRequest(content="x", prediction=prediction), ANONYMOUS).prediction,
        command.message.prediction,
    ]


def test_every_request_takes_text_or_tokens() -> None:
    assert of_each_request(pb.Prediction(text="as before")) == ["as before"] * 3
    assert of_each_request(pb.Prediction(tokens={"token_ids": [5, 6]})) == [array("i", [5, 6])] * 3


@pytest.mark.parametrize(
    ("prediction", "field"),
    [
        (pb.Prediction(), "prediction"),
        (pb.Prediction(text=""), "prediction.text"),
        (pb.Prediction(tokens={}), "prediction.tokens"),
        (pb.Prediction(tokens={"token_ids": [1] * (MAX_PREDICTION_TOKENS + 1)}), "prediction.tokens.token_ids"),
    ],
)
def test_an_empty_prediction_and_one_that_is_too_long_are_named(prediction: pb.Prediction, field: str) -> None:
    with pytest.raises(InvalidFieldsError) as caught:
        of_each_request(prediction)
    assert [violation.field for violation in caught.value.violations] == [field]


def test_another_prediction_makes_another_request() -> None:
    """It is part of a request_id's fingerprint."""
    names = {
        generation_of(pb.GenerateRequest(request_id="r", text="x", prediction=said), ANONYMOUS).name.fingerprint
        for said in (None, pb.Prediction(text="a"), pb.Prediction(text="b"), pb.Prediction(tokens={"token_ids": [1]}))
    }
    assert len(names) == 4


def test_a_waiting_message_is_as_long_as_it_is_with_its_prediction() -> None:
    assert [UserMessage(from_user("abc"), prediction=said).length for said in (None, "abcd", array("i", [1, 2]))] == [
        3,
        7,
        5,
    ]


async def test_text_becomes_the_tokens_that_an_answer_would_have(pair: Pair) -> None:
    rule, text = resolved_of(pair).terms.rule, "def first(items):\n    return items[0]\n" * 90
    said = await prediction_of(pair, text, rule, Principal("ann"))
    assert said is not None and list(said.tokens) == pair.codec.encode_rendered(text)
    assert await prediction_of(pair, None, rule, Principal("ann")) is None


async def test_a_prediction_that_cannot_be_used_is_named(pair: Pair) -> None:
    size = pair.target.vocabulary_size
    for token in (-1, size):
        assert await refused_field(pair, array("i", [3, token])) == ["prediction.tokens.token_ids"]
    assert await refused_field(pair, f"see {IMAGE}") == ["prediction.text"]
    assert await refused_field(pair, "x" * (pair.limits.max_text_length + 1)) == ["prediction.text"]
    assert await refused_field(replace(pair, target=replace(pair.target, context_length=2**20)), "( " * 70_000) == [
        "prediction.text"
    ]
    assert await refused_field(pair, "as before", Acceptance.RATIO) == ["prediction"]


def test_each_caller_is_a_source_of_its_own() -> None:
    ids = {source_id_of(Principal(name)) for name in ("ann", "bob", "")}
    assert len(ids) == 3 and all(0 <= each < 2**64 for each in ids)
    assert source_id_of(Principal("ann")) == source_id_of(Principal("ann"))


def test_a_turn_is_run_with_it(pair: Pair) -> None:
    resolved, prediction = resolved_of(pair), Prediction([5, 6], 1)
    assert resolved.terms.prediction is None
    assert resolved.predicting(prediction).terms.prediction is prediction
    assert resolved.predicting(prediction).predicting(None) == resolved


def test_a_client_sends_text_or_token_ids() -> None:
    generated = requests.generate([1], None, None, prediction="as before")
    answered = requests.answer([("user", "x")], None, None, None, prediction=[5, 6])
    sent = requests.send_message("s", "x", None, None, None, "as before")
    assert (generated.prediction.text, sent.prediction.text) == ("as before", "as before")
    assert list(answered.prediction.tokens.token_ids) == [5, 6]
    assert not requests.generate([1], None, None).HasField("prediction")
    assert requests.generate([1], None, None, prediction="").HasField("prediction"), "the server refuses it"
    with pytest.raises(TypeError, match="is bytes: decode it"):
        requests.generate([1], None, None, prediction=b"as before")
