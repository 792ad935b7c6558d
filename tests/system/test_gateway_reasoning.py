"""Reasoning is split off the answers to chats, whole and streamed, by either parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings, Structure
from tests.gateway_process import gateway_process

MODEL = "embedded-target"
QUESTION = "What does os.path.join do?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SAMPLED: Any = {"seed": 7, "temperature": 1.5, "max_tokens": 40}
THINKS = r"<think>\nhm, (one|two) é\n</think>\n\nYes, (one|two)\."

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services() -> Iterator[LocalServices]:
    with LocalServices(PairSettings(draft="")) as local:
        yield local


@pytest.fixture(scope="module", params=["deepseek_r1", "qwen3"])
def parser(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def api(services: LocalServices, parser: str) -> Iterator[openai.OpenAI]:
    with (
        gateway_process(services.orchestrator_address, "--reasoning-parser", parser) as running,
        openai.OpenAI(base_url=f"http://{running.address}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


def streamed(api: openai.OpenAI, **fields: Any) -> tuple[str, str, Any]:
    """Return content, reasoning and usage of a streamed answer."""
    content = reasoning = ""
    usage = None
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in api.chat.completions.create(model=MODEL, messages=MESSAGES, **options, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
    return content, reasoning, usage


def test_marked_reasoning_is_split_off_and_its_tokens_are_counted(services: LocalServices, api: openai.OpenAI) -> None:
    with Client(services.orchestrator_address) as grpc_client:
        settings = Settings(
            seed=7, temperature=1.5, max_token_count=40, structure=Structure(regex=THINKS), token_origins=True
        )
        expected = grpc_client.answer([("user", QUESTION)], settings).wait()
    thought, _, said = expected.text.partition("\n</think>\n\n")
    fields: Any = {**SAMPLED, "extra_body": {"structured_outputs": {"regex": THINKS}}}
    whole = api.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    message = whole.choices[0].message
    assert (message.content, message.model_extra) == (said, {"reasoning_content": thought.removeprefix("<think>\n")})
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    made = 0
    for count, size in enumerate(expected.token_text_byte_counts):
        if made >= len(f"{thought}\n</think>".encode()):
            assert whole.usage.completion_tokens_details.reasoning_tokens == count
            break
        made += size
    assert streamed(api, **fields) == (said, thought.removeprefix("<think>\n"), whole.usage)


def test_an_answer_without_marks_is_reasoning_only_where_the_prompt_may_have_begun_it(
    services: LocalServices, api: openai.OpenAI, parser: str
) -> None:
    with Client(services.orchestrator_address) as grpc_client:
        expected = grpc_client.answer(
            [("user", QUESTION)], Settings(seed=7, temperature=1.5, max_token_count=40)
        ).wait()
    content, reasoning, usage = streamed(api, **SAMPLED)
    whole = api.chat.completions.create(model=MODEL, messages=MESSAGES, **SAMPLED)
    if parser == "qwen3":
        assert (content, reasoning) == (expected.text, "")
    else:
        assert (content, reasoning) == ("", expected.text.lstrip())
        assert usage.completion_tokens_details.reasoning_tokens == expected.generated_token_count
    message = whole.choices[0].message
    assert (message.content, (message.model_extra or {}).get("reasoning_content", "")) == (content, reasoning)
    assert whole.usage == usage
