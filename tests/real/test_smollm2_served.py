"""SmolLM2 through real services, its own file as its draft: one text, with every draft, and
llama.cpp's greedy text but for choices that are nearly even."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from orchestrator.sessions.conversation.codec import Codec
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings, Structure
from slipstream.engine.llamacpp.backend import LlamaCppBackend
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.gateway_process import GatewayProcess, gateway_process

OFF = Settings(draft_length=0, max_token_count=64, seed=3, top_logprob_count=2)
MODES = {
    "fixed": replace(OFF, draft_length=4),
    "draft": replace(OFF, draft_length="adaptive", proposer="draft"),
    "n-grams": replace(OFF, draft_length="adaptive", proposer="ngram"),
    "on": replace(OFF, draft_length="adaptive"),
}
PROMPTS = (
    "Once upon a time",
    "def fibonacci(n):",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "Der Mond ist aufgegangen,",
    "<|im_start|>user\nRepeat: red, green, blue, red, green, blue.<|im_end|>\n<|im_start|>assistant\n",
)
QUESTIONS = ("Name the capital of France.", "And of Italy? Answer in one sentence.", "Name both once more.")
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "rivers": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3}}, "required": ["city", "rivers"]}'  # noqa: E501
NEAR = 1.0
"""In logits of up to thirty: llama.cpp computes with activations in eight bits."""


@pytest.fixture(scope="module")
def local(smollm2: Path) -> Iterator[LocalServices]:
    with LocalServices(PairSettings(target=str(smollm2), draft=str(smollm2))) as running:
        yield running


@pytest.fixture(scope="module")
def client(local: LocalServices) -> Iterator[Client]:
    with Client(local.orchestrator_address) as connected:
        yield connected


@pytest.fixture(scope="module")
def gateway(local: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(local.orchestrator_address) as running:
        yield running


@pytest.fixture(scope="module")
def codec(smollm2: Path) -> Codec:
    return Codec.from_files(load_tokenizer_files(str(smollm2)).files)


def answers(client: Client, settings: Settings, streams: int) -> list[Result]:
    """The answers to `PROMPTS`, so many at a time."""
    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(lambda prompt: client.generate(prompt, settings).wait(), PROMPTS))


def what_counts(results: list[Result]) -> list[Any]:
    return [(each.token_ids, each.text, each.logprobs, each.finish_reason) for each in results]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_ids_and_log_probabilities_have_the_same_bits_whatever_the_draft_does(
    client: Client, temperature: float
) -> None:
    alone = answers(client, replace(OFF, temperature=temperature), 1)
    assert not any(result.draft_token_count for result in alone)
    for name, mode in MODES.items():
        together = answers(client, replace(mode, temperature=temperature), len(PROMPTS))
        assert what_counts(together) == what_counts(alone), name
        if name == "fixed":
            assert any(result.accepted_token_count for result in together)


def test_chats_of_several_turns_have_one_text(client: Client) -> None:
    def said(settings: Settings) -> list[str]:
        with client.chat(settings=replace(settings, temperature=0, max_token_count=48)) as chat:
            return [chat.send(question).wait().text for question in QUESTIONS]

    plain = said(OFF)
    assert "Paris" in plain[0] and "Rome" in plain[1]
    assert {name: said(mode) for name, mode in MODES.items()} == dict.fromkeys(MODES, plain)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_schema_is_obeyed_by_one_text(client: Client, temperature: float) -> None:
    shared = {"temperature": temperature, "structure": Structure(json_schema=SCHEMA), "max_token_count": 120}

    def said(settings: Settings) -> str:
        with client.chat(settings=replace(settings, **shared)) as chat:
            return chat.send("Describe Paris as JSON.").wait().text

    plain = said(OFF)
    assert isinstance(json.loads(plain)["city"], str)
    assert {name: said(mode) for name, mode in MODES.items()} == dict.fromkeys(MODES, plain)


def test_greedy_ids_are_llama_cpps_but_for_choices_that_are_nearly_even(
    client: Client, codec: Codec, smollm2: Path
) -> None:
    equal = count = 0
    for prompt in PROMPTS:
        ids = client.generate(prompt, replace(OFF, temperature=0)).wait().token_ids
        text = codec.encode_text(prompt)
        backend = LlamaCppBackend(smollm2, threads=2, most_tokens=256, exact=False)
        logits = np.asarray(backend.logits_of([*text, *ids]))[len(text) - 1 : -1]
        behind = logits.max(axis=1) - logits[np.arange(len(ids)), ids]
        assert behind.max() < NEAR, f"{prompt!r}: token {behind.argmax()} is {behind.max():.2f} behind llama.cpp's"
        equal, count = equal + int((behind == 0).sum()), count + len(ids)
    assert equal > 0.95 * count


def test_a_chat_by_the_openai_package_has_the_text_of_grpc(client: Client, gateway: GatewayProcess) -> None:
    with client.chat(settings=replace(OFF, temperature=0)) as chat:
        expected = chat.send(QUESTIONS[0]).wait().text
    by_http = openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="none")
    (model,) = by_http.models.list().data
    messages: Any = [{"role": "user", "content": QUESTIONS[0]}]
    answer = by_http.chat.completions.create(model=model.id, messages=messages, temperature=0, max_tokens=64)
    assert answer.choices[0].message.content == expected
    chunks = by_http.chat.completions.create(
        model=model.id, messages=messages, temperature=0, max_tokens=64, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected


def test_tokenize_and_detokenize_answer_with_the_ids_of_the_file(gateway: GatewayProcess, codec: Codec) -> None:
    text = "Größe 12345 你好 🙂🙃 <|im_end|>"
    said = gateway.send("/tokenize", {"prompt": text}).body
    assert said["tokens"] == codec.encode_text(text)
    assert gateway.send("/detokenize", {"tokens": said["tokens"]}).body["prompt"] == text
    messages = [{"role": "user", "content": "Hello"}]
    as_chat = gateway.send("/tokenize", {"messages": messages}).body["tokens"]
    assert codec.text_with_special_tokens(as_chat).endswith(
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
