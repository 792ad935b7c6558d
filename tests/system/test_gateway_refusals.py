"""Bad requests to the gateway get a status, the field's name and what would be right, in OpenAI's
format. What a caller begins and leaves is cancelled."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.bearer_tokens import make_token
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client
from tests.either_client import until
from tests.gateway_process import GatewayProcess, gateway_process, stored_sessions
from tests.system.conftest import PAPER_PAIR

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "embedded-target"
LASTING_TOKENS = 8000

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services() -> Iterator[LocalServices]:
    with LocalServices(PairSettings(draft="")) as local:
        yield local


@pytest.fixture(scope="module")
def gateway(services: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(services.orchestrator_address, "--idle-seconds", "2") as running:
        yield running


@pytest.fixture(scope="module")
def lasting_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    """An answer takes some seconds, so that it runs when a test looks, even on a busy machine."""
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    target = f"{PAPER_PAIR.target}&forward_ms=0.5"
    with LocalServices(dataclasses.replace(PAPER_PAIR, target=target, store=str(store))) as local:
        yield local


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, **fields}


def said(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **fields}]}


WRONG = [
    ({"model": "other"}, 404, "model", "model_not_found"),
    ({"modle": "x"}, 400, "modle", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].function", "invalid_value"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools", "invalid_fields"),
    ({"functions": [{"name": "f"}]}, 400, "functions", "unsupported_parameter"),
    ({"temperature": -1}, 400, "temperature", "invalid_fields"),
    ({"temperature": "1"}, 400, "temperature", "invalid_value"),
    ({"top_p": 0}, 400, "top_p", "invalid_fields"),
    ({"seed": -1}, 400, "seed", "invalid_value"),
    ({"n": 65}, 400, "n", "invalid_value"),
    ({"max_completion_tokens": 3}, 400, "max_tokens", None),
    ({"stop": ["a"] * 17}, 400, "stop", "invalid_fields"),
    ({"speculation": "fast"}, 400, "speculation", "invalid_value"),
    ({"speculation": 1000}, 400, "speculation", "invalid_fields"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", None),
    ({"stream": True, "temperature": -1}, 400, "temperature", "invalid_fields"),
    ({"top_logprobs": 2}, 400, "top_logprobs", None),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias", None),
    ({"guided_regex": "("}, 400, "guided_regex", "invalid_structure"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema", None),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, 400, "structured_outputs", None),
    ({"messages": []}, 400, "messages", "invalid_value"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages[0].role", "invalid_fields"),
    (said(""), 400, "messages[0].content", "invalid_fields"),
    (said("Hi", name="Ann"), 400, "messages[0].name", "unsupported_parameter"),
    (said([{"type": "image_url", "image_url": {}}]), 400, "messages[0].content[0].image_url", "unsupported_parameter"),
    (said("hello " * 5000), 400, "messages", "context_length_exceeded"),
]


@pytest.mark.parametrize(("fields", "status", "param", "code"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named(
    gateway: GatewayProcess, fields: dict[str, Any], status: int, param: str, code: str | None
) -> None:
    answer = gateway.send(CHAT, chat(**fields))
    assert (answer.status, answer.error["param"], answer.error["code"]) == (status, param, code)
    assert answer.error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"prompt": "x", "guided_grammar": "("}, "guided_grammar"),
        ({}, "prompt"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_completion_is_named(gateway: GatewayProcess, fields: dict[str, Any], param: str) -> None:
    answer = gateway.send(COMPLETIONS, {"model": MODEL, **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


HOSTILE = [
    ({"seed": 2**63}, "seed"),
    ({"seed": 10**400}, "seed"),
    ({"top_k": 2**31}, "top_k"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"min_tokens": 2**31}, "min_tokens"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
    ({"speculation": 2**31}, "speculation"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"logit_bias": {"5": float("inf")}}, "logit_bias[5]"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ({"stop": "\ud800"}, "stop"),
    (said("\ud800"), "messages[0].content"),
    ({"user": "\ud800"}, "user"),
    ({"\ud800": 1}, "?"),
    ({"speculation": "\ud800"}, "speculation"),
    ({"messages": [{"role": "\ud800", "content": "Hi"}]}, "messages[0].role"),
    ({"logit_bias": {"\ud800": 1}}, "logit_bias"),
    ({"tools": "\ud800"}, "tools"),
    ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs.regex"),
]


@pytest.mark.parametrize(("fields", "param"), HOSTILE, ids=ascii)
def test_a_value_that_no_message_can_hold_is_named(gateway: GatewayProcess, fields: dict[str, Any], param: str) -> None:
    answer = gateway.send(CHAT, chat(**fields))
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(["a"] * 300, "prompt"), ([2**31], "prompt[0]"), ([[1], [-1]], "prompt"), ("\ud800", "prompt")],
    ids=lambda value: ascii(value)[:20],
)
def test_a_prompt_that_no_message_can_hold_is_named(gateway: GatewayProcess, prompt: Any, param: str) -> None:
    answer = gateway.send(COMPLETIONS, {"model": MODEL, "prompt": prompt})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_body_of_very_many_brackets_is_refused(gateway: GatewayProcess) -> None:
    assert gateway.send(CHAT, b"[" * 100_000).status == 400


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[]", b'"text"', b""], ids=repr)
def test_a_body_that_is_no_json_object_is_refused(gateway: GatewayProcess, body: bytes) -> None:
    answer = gateway.send(CHAT, body)
    assert answer.status == 400
    assert "JSON" in answer.error["message"]


def test_a_null_field_and_a_value_that_asks_for_nothing_are_accepted(gateway: GatewayProcess) -> None:
    harmless = {"tools": None, "tool_choice": "none", "store": False, "seed": None, "service_tier": "auto"}
    assert gateway.send(CHAT, chat(**harmless)).status == 200


def test_an_unknown_path_and_method_get_openais_error_too(gateway: GatewayProcess) -> None:
    assert gateway.send("/v1/nothing").error["message"] == "GET /v1/nothing: Not Found"
    assert gateway.send(CHAT).status == 405
    wrong = gateway.send("/slipstream/v1/sessions/s", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "DELETE, GET, PATCH")


def test_a_large_body_is_refused_before_it_is_sent(gateway: GatewayProcess) -> None:
    with socket.create_connection(address_of(gateway), timeout=60) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {100 * 2**20}\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 413 " in read_all(connection)


def test_a_large_body_without_a_length_is_refused_too(gateway: GatewayProcess) -> None:
    piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    with socket.create_connection(address_of(gateway), timeout=60) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(8):
            connection.sendall(piece)
        connection.sendall(b"1\r\n \r\n")
        assert b" 413 " in connection.recv(4096)


def test_a_large_header_is_refused(gateway: GatewayProcess) -> None:
    with socket.create_connection(address_of(gateway), timeout=60) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"x" * 33 * 1024)
        assert b" 400 " in read_all(connection)


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /version HTT", f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode()],
    ids=["nothing", "half a header", "half a body"],
)
def test_a_connection_that_says_nothing_more_is_closed(gateway: GatewayProcess, beginning: bytes) -> None:
    with socket.create_connection(address_of(gateway), timeout=60) as connection:
        connection.sendall(beginning)
        end = read_all(connection)
    assert end == b"" or b" 408 " in end


@contextmanager
def lasting(gateway: GatewayProcess, *, stream: bool) -> Iterator[socket.socket]:
    """A connection on which an answer of many tokens is generated; it is closed at the end."""
    body = f'{{"model":"lasting","prompt":[10,20,30],"max_tokens":{LASTING_TOKENS},"speculation":"off",'
    body += f'"return_token_ids":true,"stream":{str(stream).lower()}}}'
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the gateway has to wait for reads
        connection.settimeout(60)
        connection.connect(address_of(gateway))
        connection.sendall((head + body).encode())
        yield connection


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_caller_that_leaves_ends_its_turn(lasting_services: LocalServices, stream: bool) -> None:
    address = lasting_services.orchestrator_address
    with (
        gateway_process(address, "--model-name", "lasting") as gateway,
        Client(address) as client,
    ):

        def status() -> Any:
            return client.status().processes[0]

        before = status().generated_token_count
        with lasting(gateway, stream=stream) as connection:
            until(lambda: status().running_turn_count == 1)
            assert stored_sessions(lasting_services.settings.store) == 1
            if stream:
                assert b"data: " in connection.recv(4096) + connection.recv(4096)
        until(lambda: status().running_turn_count == 0)
        assert status().generated_token_count - before < LASTING_TOKENS
        until(lambda: stored_sessions(lasting_services.settings.store) == 0)


def test_a_slow_reader_loses_nothing_and_holds_up_no_other_caller(lasting_services: LocalServices) -> None:
    address = lasting_services.orchestrator_address
    with (
        gateway_process(address, "--model-name", "lasting") as gateway,
        Client(address) as client,
        lasting(gateway, stream=True) as connection,
    ):
        until(lambda: client.status().processes[0].running_turn_count == 1)
        other = gateway.send(COMPLETIONS, {"model": "lasting", "prompt": [1, 2], "max_tokens": 5})
        assert other.body["usage"]["completion_tokens"] == 5
        until(lambda: client.status().processes[0].running_turn_count == 0)
        received = b""
        while b"data: [DONE]" not in received[-100:]:
            received += connection.recv(65536)
    events = re.findall(rb"^data: (\{.*\})", received, re.MULTILINE)
    token_counts = [len(json.loads(event)["choices"][0]["token_ids"]) for event in events]
    assert sum(token_counts) == LASTING_TOKENS


def test_a_website_that_lets_its_name_point_here_is_refused(gateway: GatewayProcess) -> None:
    """Its page could send any token."""
    for headers in ({"host": "rebound.example"}, {"host": "rebound.example", "authorization": "Bearer unused"}):
        refused = gateway.send("/v1/models", headers=headers)
        assert (refused.status, refused.error["code"]) == (421, "host_not_allowed")
    assert gateway.send("/v1/models", headers={"host": "localhost:8000"}).status == 200


def test_tokens_are_passed_on_and_limits_come_back(tmp_path: Path) -> None:
    (good, kept), (limited, kept_limited) = make_token(), make_token()
    access = tmp_path / "access.toml"
    access.write_text(
        "".join(
            f'[[principals]]\nname = "{name}"\ntokens = [{{ id = "{token.id}", salt = "{token.salt}", '
            f'sha256 = "{token.sha256}" }}]\n{limit}'
            for name, token, limit in (("ann", kept, ""), ("bob", kept_limited, "tokens_per_minute = 8\n"))
        )
    )
    guarded = dataclasses.replace(PAPER_PAIR, orchestrator_flags=["--access", str(access)])
    body = {"model": "lasting", "prompt": [10, 20, 30], "max_tokens": 3}
    with (
        LocalServices(guarded) as local,
        gateway_process(local.orchestrator_address, "--model-name", "lasting") as gateway,
    ):

        def sent(token: str | None) -> Any:
            return gateway.send(COMPLETIONS, body, {} if token is None else {"authorization": f"Bearer {token}"})

        assert gateway.send("/health").status == 200
        for wrong in (None, "unknown.0123456789abcdef"):
            assert (sent(wrong).status, sent(wrong).error["code"]) == (401, "invalid_api_key")
        assert sent(good).status == 200
        assert gateway.send("/v1/models", headers={"authorization": f"Bearer {good}"}).status == 200
        assert gateway.send("/v1/models").status == 401  # what one caller has learnt is not for another
        answers = [sent(limited) for _ in range(4)]
        refused = next(answer for answer in answers if answer.status != 200)
        assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["x-ratelimit-limit-tokens"] == "8"
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) < 8
        assert refused.headers["x-ratelimit-reset-tokens"].endswith("s")
        assert "x-ratelimit-limit-tokens" not in sent(good).headers


def test_an_orchestrator_that_is_away_is_told_as_503() -> None:
    with gateway_process(free_address(), "--model-name", "lasting") as gateway:
        assert gateway.send("/health").status == 503
        assert gateway.send(CHAT, chat()).status == 503


def address_of(gateway: GatewayProcess) -> tuple[str, int]:
    host, _, port = gateway.address.rpartition(":")
    return host, int(port)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received
