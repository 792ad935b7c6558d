"""Responses outlive the gateway that began them: they run in the background, are watched, cancelled
and deleted through any gateway, and by their principal alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices
from slipstream.client import Client
from tests.either_client import until
from tests.gateway_process import GatewayProcess, gateway_process
from tests.response_types import check_events, check_response
from tests.system.conftest import PAPER_PAIR

LASTING = dataclasses.replace(PAPER_PAIR, target=f"{PAPER_PAIR.target}&forward_ms=2")
"""A long answer without hints takes sixteen seconds: it runs when a test looks, even on a busy
machine."""
MODEL, LASTING_TOKENS, SHORT_TOKENS = "lasting", 8000, 600
ASKED: Any = {"model": MODEL, "input": "Hi", "extra_body": {"speculation": "off"}}

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    with LocalServices(dataclasses.replace(LASTING, store=str(store))) as local:
        yield local


@contextlib.contextmanager
def gateway_in_front(services: LocalServices) -> Iterator[tuple[GatewayProcess, openai.OpenAI]]:
    with (
        gateway_process(services.orchestrator_address, "--model-name", MODEL) as gateway,
        openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="unused", max_retries=0) as api,
    ):
        yield gateway, api


@pytest.fixture(scope="module")
def front(services: LocalServices) -> Iterator[tuple[GatewayProcess, openai.OpenAI]]:
    with gateway_in_front(services) as running:
        yield running


@pytest.fixture
def gateway(front: tuple[GatewayProcess, openai.OpenAI]) -> GatewayProcess:
    return front[0]


@pytest.fixture
def api(front: tuple[GatewayProcess, openai.OpenAI]) -> openai.OpenAI:
    return front[1]


def running_turn_count(services: LocalServices) -> int:
    with Client(services.orchestrator_address) as client:
        return client.status().processes[0].running_turn_count


def test_a_response_in_the_background_outlives_its_gateway(services: LocalServices, api: openai.OpenAI) -> None:
    expected = api.responses.create(**ASKED, max_output_tokens=SHORT_TOKENS)
    with gateway_in_front(services) as (first, through_first):
        response = through_first.responses.create(**ASKED, max_output_tokens=SHORT_TOKENS, background=True)
        check_response(response)
        assert (response.status, response.background, response.output) == ("in_progress", True, [])
        seen = []
        for event in through_first.responses.retrieve(response.id, stream=True):
            seen.append(event)
            if event.sequence_number == 20:
                break
        first.process.kill()
    with gateway_in_front(services) as (_, through_second):
        rest = list(through_second.responses.retrieve(response.id, stream=True, starting_after=20))
        check_events([*seen, *rest])
        text = "".join(event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta")
        whole = through_second.responses.retrieve(response.id)
    check_response(whole)
    assert whole.output_text == text == expected.output_text
    assert (whole.status, whole.incomplete_details) == ("incomplete", expected.incomplete_details)
    assert (whole.created_at, whole.id) == (response.created_at, response.id)
    assert api.responses.retrieve(response.id) == whole


def test_a_response_in_the_background_streams_and_goes_on_when_its_reader_leaves(api: openai.OpenAI) -> None:
    with api.responses.create(**ASKED, max_output_tokens=SHORT_TOKENS, stream=True, background=True) as stream:
        begun: Any = next(iter(stream))
    rest = list(api.responses.retrieve(begun.response.id, stream=True, starting_after=begun.sequence_number))
    check_events([begun, *rest])
    assert rest[-1].type == "response.incomplete"


def test_a_response_in_the_background_is_cancelled(services: LocalServices, api: openai.OpenAI) -> None:
    response = api.responses.create(**ASKED, max_output_tokens=LASTING_TOKENS, background=True)
    seen = []
    for event in api.responses.retrieve(response.id, stream=True):
        seen.append(event)
        if event.sequence_number == 10:
            cancelled = api.responses.cancel(response.id)
    check_events(seen)
    check_response(cancelled)
    assert cancelled.status == "cancelled"
    assert cancelled == api.responses.cancel(response.id) == api.responses.retrieve(response.id)
    last: Any = seen[-1]
    assert (last.type, last.response) == ("response.incomplete", cancelled)
    assert running_turn_count(services) == 0
    foreground = api.responses.create(model=MODEL, input="Hi", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError, match="only a response with background: true"):
        api.responses.cancel(foreground.id)


def test_one_that_is_not_in_the_background_ends_with_its_stream(services: LocalServices, api: openai.OpenAI) -> None:
    with api.responses.create(**ASKED, max_output_tokens=LASTING_TOKENS, stream=True) as stream:
        begun: Any = next(iter(stream))
        assert running_turn_count(services) == 1
        assert api.responses.retrieve(begun.response.id).status == "in_progress"
    until(lambda: running_turn_count(services) == 0)
    left = api.responses.retrieve(begun.response.id)
    check_response(left)
    assert left.status == "cancelled"


def test_a_response_is_its_principals_alone(tmp_path: Path) -> None:
    (alice, kept_alice), (bob, kept_bob) = make_token(), make_token()
    access = tmp_path / "access.toml"
    access.write_text(
        "".join(
            f'[[principals]]\nname = "{name}"\ntokens = [{{ id = "{token.id}", salt = "{token.salt}", '
            f'sha256 = "{token.sha256}" }}]\n'
            for name, token in (("alice", kept_alice), ("bob", kept_bob))
        )
    )
    guarded = dataclasses.replace(PAPER_PAIR, orchestrator_flags=["--access", str(access)])
    with (
        LocalServices(guarded) as local,
        gateway_process(local.orchestrator_address, "--model-name", MODEL) as gateway,
    ):
        url = f"http://{gateway.address}/v1"
        hers = openai.OpenAI(base_url=url, api_key=alice, max_retries=0)
        his = openai.OpenAI(base_url=url, api_key=bob, max_retries=0)
        fields: Any = {"model": MODEL, "max_output_tokens": 3}
        conversation = hers.conversations.create()
        response = hers.responses.create(input="Hi", background=True, **fields)
        for call in (his.responses.retrieve, his.responses.cancel, his.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
        for listing in (his.responses.input_items.list, his.conversations.retrieve, his.conversations.delete):
            with pytest.raises(openai.NotFoundError):
                listing(response.id if listing == his.responses.input_items.list else conversation.id)
        with pytest.raises(openai.BadRequestError, match="there is no response"):
            his.responses.create(input="Hi", previous_response_id=response.id, **fields)
        with pytest.raises(openai.NotFoundError, match="there is no conversation"):
            his.responses.create(input="Hi", conversation=conversation.id, **fields)
        assert list(hers.responses.retrieve(response.id, stream=True))[-1].type == "response.incomplete"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": ""}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].image_url",
    ),
    ({"input": "x" * 2**20}, "input"),
    ({"input": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]}, "input[1].role"),
    ({"input": [{"role": "user", "content": ""}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"previous_response_id": f"resp_{'0' * 16}_1"}, "previous_response_id"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": f"conv_{'0' * 16}"}}, "conversation"),
    ({"conversation": "conv_1", "store": False}, "store"),
    ({"conversation": "conv_1", "instructions": "Be brief."}, "instructions"),
    ({"background": True, "store": False}, "background"),
    ({"metadata": {str(index): "" for index in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"user": "x" * 513}, "user"),
    ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 2, "min_tokens": 3}, "min_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}}, "text.format"),
    ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "structured_outputs"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"truncation": "auto"}, "truncation"),
    ({"model": "other"}, "model"),
    ({"no_field": 1}, "no_field"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_bad_request_names_its_field_and_leaves_nothing(
    gateway: GatewayProcess, services: LocalServices, fields: dict[str, Any], param: str
) -> None:
    with Client(services.orchestrator_address) as client:
        before = {session.session_id for session in client.list_sessions()}
        answer = gateway.send("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 2, **fields})
        assert (answer.status in (400, 404), answer.error["param"]) == (True, param), answer.body
        until(lambda: {session.session_id for session in client.list_sessions()} == before)


def test_a_bad_query_names_its_parameter(gateway: GatewayProcess) -> None:
    path = f"/v1/responses/resp_{'0' * 16}_1"
    for query, param in (
        ("?stream=maybe", "stream"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?other=1", "other"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?order=up", "order"),
        ("", "response_id"),
        ("/input_items", "response_id"),
    ):
        answer = gateway.send(path + query)
        expected = 404 if param == "response_id" else 400
        assert (answer.status, answer.error["param"]) == (expected, param), answer.body
