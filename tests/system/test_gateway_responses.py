"""OpenAI's unmodified package uses the Responses API of the gateway, in front of the real services.
Every response and event fits OpenAI's types and those of the Open Responses specification."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from tests.either_client import until
from tests.gateway_process import GatewayProcess, stored_sessions
from tests.response_types import check_events, check_response

MODEL = "embedded-target"
QUESTION, NEXT = "What does os.path.join do?", "And os.path.split?"
SAMPLED = Settings(seed=7, temperature=1.5, max_token_count=40)
SAMPLED_HERE: Any = {"temperature": 1.5, "max_output_tokens": 40, "extra_body": {"seed": 7}}

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    with LocalServices(PairSettings(store=str(store))) as local:
        yield local


def created(api: openai.OpenAI, **fields: Any) -> Any:
    """Return a response, whole."""
    response = api.responses.create(model=MODEL, **fields)
    check_response(response)
    return response


def streamed(api: openai.OpenAI, **fields: Any) -> list[Any]:
    """Return the events of a response."""
    events = list(api.responses.create(model=MODEL, stream=True, **fields))
    check_events(events)
    return events


def test_a_response_has_the_text_and_usage_of_a_grpc_session(api: openai.OpenAI, grpc_client: Client) -> None:
    with grpc_client.chat(system="Be brief.") as chat:
        expected = chat.send(QUESTION, SAMPLED).wait()
    metadata = {f"key {index}": "ü" * 512 for index in range(16)}
    response = created(
        api, input=QUESTION, instructions="Be brief.", metadata=metadata, user="ann", top_p=0.9, **SAMPLED_HERE
    )
    with grpc_client.chat(system="Be brief.") as chat:
        expected = chat.send(QUESTION, Settings(seed=7, temperature=1.5, top_p=0.9, max_token_count=40)).wait()
    assert response.output_text == expected.text
    assert response.status == {"END_TOKEN": "completed", "MAX_TOKENS": "incomplete"}[expected.finish_reason]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        expected.prompt_token_count,
        expected.generated_token_count,
    )
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", metadata, "ann")
    assert (response.temperature, response.top_p, response.max_output_tokens) == (1.5, 0.9, 40)
    assert api.responses.retrieve(response.id) == response


def test_a_stream_has_every_event_and_the_same_response(api: openai.OpenAI) -> None:
    whole = created(api, input=QUESTION, **SAMPLED_HERE)
    events = streamed(api, input=QUESTION, **SAMPLED_HERE)
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    begun = ["created", "in_progress", "output_item.added", "content_part.added"]
    ended = ["output_text.done", "content_part.done", "output_item.done", whole.status]
    assert deltas > 1
    assert kinds == [*begun, *["output_text.delta"] * deltas, *ended]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1].response
    assert (last.output_text, last.usage.output_tokens) == (whole.output_text, whole.usage.output_tokens)
    assert api.responses.retrieve(last.id) == last
    again = list(api.responses.retrieve(last.id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
    rest = api.responses.retrieve(last.id, stream=True, starting_after=5)
    assert [event.to_dict() for event in rest] == [event.to_dict() for event in events[6:]]


def test_a_chain_is_a_session_whose_tokens_are_not_computed_again(api: openai.OpenAI, grpc_client: Client) -> None:
    said = ["A chain: what does os.getcwd do?", "And os.chdir, which follows?", "Thanks!"]
    previous, responses = None, []
    for content in said:
        responses.append(created(api, input=content, previous_response_id=previous, **SAMPLED_HERE))
        previous = responses[-1].id
    for before, after in pairwise(responses):
        assert after.previous_response_id == before.id
        held = before.usage.input_tokens + before.usage.output_tokens
        cached = after.usage.input_tokens_details.cached_tokens
        assert held - 32 <= cached <= held, "whole pages of what was there"
    with grpc_client.chat() as chat:
        expected = [chat.send(content, SAMPLED).wait() for content in said]
    assert [response.output_text for response in responses] == [result.text for result in expected]


def test_two_responses_may_follow_one_and_neither_changes_the_other(api: openai.OpenAI) -> None:
    first = created(api, input=QUESTION, **SAMPLED_HERE)
    followers = [
        created(api, input=content, previous_response_id=first.id, **SAMPLED_HERE)
        for content in (NEXT, "Something else.", NEXT)
    ]
    assert followers[0].output_text == followers[2].output_text
    assert followers[1].usage.input_tokens != followers[0].usage.input_tokens
    api.responses.delete(first.id)
    after = [created(api, input="Thanks!", previous_response_id=one.id, **SAMPLED_HERE) for one in followers]
    assert after[0].output_text == after[2].output_text
    with pytest.raises(openai.BadRequestError) as gone:
        created(api, input=NEXT, previous_response_id=first.id)
    assert (gone.value.param, gone.value.code) == ("previous_response_id", "previous_response_not_found")


def test_instructions_are_those_of_the_response_alone(api: openai.OpenAI, grpc_client: Client) -> None:
    first = created(api, input=QUESTION, instructions="Be brief.", **SAMPLED_HERE)
    texts = {}
    for instructions in ("Be long.", None):
        following = created(api, input=NEXT, instructions=instructions, previous_response_id=first.id, **SAMPLED_HERE)
        system = [("system", instructions)] if instructions else []
        said = [*system, ("user", QUESTION), ("assistant", first.output_text), ("user", NEXT)]
        assert following.instructions == instructions
        assert following.usage.input_tokens == len(grpc_client.tokenize(said).token_ids)
        texts[instructions] = following.output_text
    assert len(set(texts.values())) == 2


def test_a_conversation_has_its_inputs_and_answers(api: openai.OpenAI, grpc_client: Client) -> None:
    instructions: Any = [{"type": "message", "role": "developer", "content": "Be brief."}]
    conversation = api.conversations.create(items=instructions, metadata={"title": "paths"})
    with grpc_client.chat(system="Be brief.") as chat:
        expected = [chat.send(content, SAMPLED).wait().text for content in (QUESTION, NEXT)]
    said = [created(api, input=content, conversation=conversation.id, **SAMPLED_HERE) for content in (QUESTION, NEXT)]
    assert [response.output_text for response in said] == expected
    assert said[1].conversation.id == conversation.id
    assert said[1].usage.input_tokens_details.cached_tokens > 0
    assert api.conversations.retrieve(conversation.id).metadata == {"title": "paths"}
    assert api.conversations.update(conversation.id, metadata={"title": "os"}).metadata == {"title": "os"}
    assert api.conversations.retrieve(conversation.id).metadata == {"title": "os"}
    items: Any = list(api.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.role for item in items] == ["system", "user", "assistant", "user", "assistant"]
    assert [item.content[0].text for item in items] == ["Be brief.", QUESTION, expected[0], NEXT, expected[1]]
    assert api.responses.retrieve(said[0].id) == said[0]
    with pytest.raises(openai.BadRequestError, match="a part of its conversation"):
        api.responses.delete(said[0].id)
    branch = created(api, input=NEXT, previous_response_id=said[0].id, instructions="Be brief.", **SAMPLED_HERE)
    assert branch.output_text == expected[1]
    assert api.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(said[0].id)


def test_a_text_follows_its_schema(api: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}, "kind": {"enum": ["file", "folder"]}},
        "required": ["size", "kind"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "entry", "schema": schema, "strict": True}}
    response = created(api, input=QUESTION, text=text)
    assert json.loads(response.output_text).keys() == {"size", "kind"}
    assert response.text.format.schema_ == schema
    assert api.responses.retrieve(response.id) == response
    loose = created(api, input=QUESTION, text={"format": {"type": "json_object"}}, max_output_tokens=100)
    assert loose.output_text.startswith("{")


def test_log_probabilities_are_grpcs_and_stream_with_their_text(api: openai.OpenAI, grpc_client: Client) -> None:
    with grpc_client.chat() as chat:
        expected = chat.send("Grüß Gott 🐍", Settings(max_token_count=6, top_logprob_count=2, token_bytes=True)).wait()
    asked: Any = {
        "input": "Grüß Gott 🐍",
        "max_output_tokens": 6,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    events = streamed(api, **asked)
    (message,) = events[-1].response.output
    logprobs = message.content[0].logprobs
    assert [(bytes(token.bytes), token.logprob) for token in logprobs] == [
        (token.token_bytes, token.logprob) for token in expected.logprobs
    ]
    assert [len(token.top_logprobs) for token in logprobs] == [2] * len(logprobs)
    told = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert [token.logprob for token in told] == [token.logprob for token in logprobs[: len(told)]]
    assert created(api, **asked).output[0].content == message.content


def test_what_is_not_stored_is_not_there(services: LocalServices, api: openai.OpenAI) -> None:
    first = created(api, input=QUESTION, **SAMPLED_HERE)
    before = stored_sessions(services.settings.store)
    gone = created(api, input=NEXT, previous_response_id=first.id, store=False, **SAMPLED_HERE)
    assert streamed(api, input=NEXT, previous_response_id=first.id, store=False, **SAMPLED_HERE)[-1].response.output
    until(lambda: stored_sessions(services.settings.store) == before)
    with pytest.raises(openai.NotFoundError) as missing:
        api.responses.retrieve(gone.id)
    assert missing.value.code == "response_not_found"


def test_a_list_of_items_is_a_conversation_that_was_held_elsewhere(api: openai.OpenAI, grpc_client: Client) -> None:
    first = created(api, input=QUESTION, **SAMPLED_HERE)
    output = [item.to_dict() for item in first.output]
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "reasoning", "summary": []},
        *output,
        {"role": "user", "content": NEXT},
    ]
    said = [("system", "Be brief."), ("user", QUESTION), ("assistant", first.output_text), ("user", NEXT)]
    with grpc_client.chat() as chat:
        expected = chat.send(said, SAMPLED).wait()
    response = created(api, input=items, **SAMPLED_HERE)
    assert response.output_text == expected.text
    assert response.usage.input_tokens == expected.prompt_token_count == len(grpc_client.tokenize(said).token_ids)
    listed: Any = list(api.responses.input_items.list(response.id, order="asc"))
    assert [(item.role, item.content[0].text) for item in listed] == said
    following = created(api, input="Thanks!", previous_response_id=response.id, **SAMPLED_HERE)
    assert following.usage.input_tokens > response.usage.input_tokens + response.usage.output_tokens


def test_the_input_of_a_response_is_listed(api: openai.OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": part} for part in ("What ", "now?")]}]
    response = created(api, input=parts, max_output_tokens=2)
    items: Any = list(api.responses.input_items.list(response.id))
    assert [(item.type, item.role, item.content[0].text) for item in items] == [("message", "user", "What now?")]
    api.responses.delete(response.id)
    for call in (api.responses.retrieve, api.responses.delete, api.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(response.id)


@pytest.mark.parametrize("guide", ["openai", "responses"])
def test_the_programs_of_the_guides_run(gateway: GatewayProcess, guide: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / f"{guide}.md").read_text()
    programs = re.findall(r"^```python\n(from openai .*?)^```", text, re.M | re.S)
    assert programs
    for program in programs:
        here = program.replace("http://127.0.0.1:8000", f"http://{gateway.address}")
        assert here != program
        ran = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.strip()
