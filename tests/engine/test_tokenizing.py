"""Tokenize tells the tokens that a generation begins with, and Detokenize their text."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from orchestrator.contract.tokens import MAX_RESPONSE_BYTES, answered, tokens_response
from orchestrator.rounds.drafts import Drafts
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import Message
from orchestrator.sessions.turns.pair import Conversation, Pair
from orchestrator.sessions.turns.tokenizing import Tokenization, detokenize, tokenize
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files
from slipstream.structures.trials import StructureTrials
from slipstream.v1 import orchestrator_pb2
from tests.scripted_peers import MODEL, Draft, Verifier, rounds_over

FILES = load_tokenizer_files(str(embedded_directory("target"))).files
NOW = datetime(2026, 3, 1, tzinfo=UTC)
BEGIN = "<|im_start|>"
TEMPLATE = (
    "{{ strftime_now('%Y') }}{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_end|>answer:{% endif %}"
)
PADDING = 3


@pytest.fixture(scope="module")
def pair() -> Pair:
    return pair_with(TEMPLATE)


def pair_with(template: str) -> Pair:
    """Its tokenizer puts a special token before a text, and its model has rows that no token
    uses."""
    tokenizer = Tokenizer.from_buffer(FILES["tokenizer.json"])
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = TemplateProcessing(f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    codec = Codec(tokenizer.to_str().encode(), json.loads(FILES["tokenizer_config.json"]), template)
    model = replace(MODEL, vocabulary_size=tokenizer.get_vocab_size() + PADDING, context_length=4096)
    structures = StructureTrials(FILES["tokenizer.json"], model.vocabulary_size, model.end_token_ids)
    return Pair(model, Drafts(), codec, rounds_over(Draft(), Verifier()), structures, 0, 8)


@pytest.mark.parametrize("text", ["", "What is len?", "é" * 3000], ids=["empty", "short", "long"])
async def test_a_texts_tokens_are_those_of_its_generation_and_may_lack_the_special_ones(pair: Pair, text: str) -> None:
    tokens, strings = await tokenize(pair, Tokenization(text, token_strings=True), NOW)
    assert tokens == await pair.encode(text, NOW)
    assert strings[0] == BEGIN and strings == [pair.codec.tokenizer.id_to_token(token) for token in tokens]
    bare, none = await tokenize(pair, Tokenization(text, add_special_tokens=False), NOW)
    assert (bare, none) == (tokens[1:], [])
    assert await detokenize(pair, bare, skip_special_tokens=False) == text


async def test_a_conversations_tokens_are_those_of_its_generation_and_may_end_with_its_last_message(pair: Pair) -> None:
    said = (Message("user", "What is len?"), Message("assistant", "A function."))
    tokens, _ = await tokenize(pair, Tokenization(Conversation(said), NOW.replace(year=2031)), NOW)
    assert tokens == await pair.encode(Conversation(said), NOW.replace(year=2031))
    closed, _ = await tokenize(pair, Tokenization(Conversation(said, add_generation_prompt=False)), NOW)
    text = await detokenize(pair, closed, skip_special_tokens=False)
    assert text == f"2026{BEGIN}What is len?{BEGIN}A function."
    opened = await detokenize(pair, tokens, skip_special_tokens=False)
    assert opened == f"2031{text[4:]}<|im_end|>answer:"


async def test_special_tokens_are_left_out_of_a_text_on_request(pair: Pair) -> None:
    tokens = await pair.encode("hello", NOW)
    assert await detokenize(pair, tokens, skip_special_tokens=False) == f"{BEGIN}hello"
    assert await detokenize(pair, tokens, skip_special_tokens=True) == "hello"
    assert await detokenize(pair, [], skip_special_tokens=True) == ""


async def test_an_id_that_pads_the_vocabulary_has_no_text_and_one_beyond_is_refused(pair: Pair) -> None:
    size = pair.target.vocabulary_size
    assert await detokenize(pair, [size - 1], skip_special_tokens=False) == ""
    for wrong in (size, -1):
        with pytest.raises(InvalidFieldsError, match=rf"token_ids\[1\] must be from 0 to {size - 1}, but is {wrong}"):
            await detokenize(pair, [size - 1, wrong], skip_special_tokens=False)


def test_an_answer_that_clients_could_not_receive_is_refused() -> None:
    least = orchestrator_pb2.DetokenizeResponse(text="x" * (MAX_RESPONSE_BYTES - 5))
    assert answered(least, "token_ids") is least
    with pytest.raises(InvalidFieldsError, match="token_ids asks for too long an answer") as caught:
        answered(orchestrator_pb2.DetokenizeResponse(text="x" * MAX_RESPONSE_BYTES), "token_ids")
    assert [violation.field for violation in caught.value.violations] == ["token_ids"]


def test_tokens_that_clients_could_not_receive_are_refused() -> None:
    """By a bound that no message passes that is small enough."""
    for tokens, strings in (([7] * 3_900_000, []), ([1] * 900_000, ["x"] * 900_000), ([1], ["é" * 1_990_000])):
        whole = tokens_response(tokens, strings, 4096, "text")
        assert 3_500_000 < whole.ByteSize() <= MAX_RESPONSE_BYTES and whole.token_count == len(tokens)
    for tokens, strings in (
        ([300_000] * 1_500_000, []),
        ([7] * (MAX_RESPONSE_BYTES + 1), []),
        ([1], ["é" * 2_000_000]),
        ([1], ["x" * MAX_RESPONSE_BYTES]),
    ):
        with pytest.raises(InvalidFieldsError, match="text asks for too long an answer"):
            tokens_response(tokens, strings, 4096, "text")
