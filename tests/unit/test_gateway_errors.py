"""Errors of the gateway: their HTTP status, their form, their field and when to retry."""

from __future__ import annotations

import pytest

from gateway.errors import error_of_peer, openai_field
from slipstream.client import PeerError
from slipstream.errors import Code, FieldViolation


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.INVALID_ARGUMENT, 400),
        (Code.OUT_OF_RANGE, 400),
        (Code.FAILED_PRECONDITION, 400),
        (Code.UNIMPLEMENTED, 400),
        (Code.UNAUTHENTICATED, 401),
        (Code.PERMISSION_DENIED, 403),
        (Code.NOT_FOUND, 404),
        (Code.ABORTED, 409),
        (Code.RESOURCE_EXHAUSTED, 429),
        (Code.CANCELLED, 499),
        (Code.INTERNAL, 500),
        (Code.UNKNOWN, 500),
        (Code.DATA_LOSS, 500),
        (Code.UNAVAILABLE, 503),
        (Code.DEADLINE_EXCEEDED, 504),
    ],
)
def test_each_grpc_status_has_an_http_status(code: Code, status: int) -> None:
    error = error_of_peer(PeerError(code, "SOME_REASON", "text"))
    assert error.status == status
    assert error.body()["error"] == {"message": "text", "type": error.kind, "param": None, "code": "some_reason"}


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("settings.sampling.temperature", "temperature"),
        ("settings.max_token_count", "max_tokens"),
        ("settings.stop_strings", "stop"),
        ("settings.structure", "response_format"),
        ("settings.speculation.fixed.length", "speculation"),
        ("conversation.messages[2].content", "messages[2].content"),
        ("tokens.token_ids", "prompt"),
        ("prediction.text", "prediction"),
        ("choice_count", "n"),
    ],
)
def test_a_field_is_told_by_openais_name(field: str, name: str) -> None:
    assert openai_field(field) == name
    violation = FieldViolation(field, "must be right")
    error = error_of_peer(
        PeerError(Code.INVALID_ARGUMENT, "INVALID_FIELDS", f"{field} must be right", None, [violation])
    )
    assert (error.param, str(error)) == (name, f"{name} must be right")


def test_the_prompt_of_a_chat_is_its_messages() -> None:
    violation = FieldViolation("prompt", "must be shorter")
    error = PeerError(Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG", "the prompt is long", None, [violation])
    assert (error_of_peer(error, {"prompt": "messages"}).param, error_of_peer(error).param) == ("messages", "prompt")
    assert error_of_peer(error).code == "context_length_exceeded"


def test_a_word_that_holds_a_fields_name_stays() -> None:
    violation = FieldViolation("text", "must have at most 9 characters")
    what = "10 characters are too many for a context of 4 tokens"
    error = error_of_peer(PeerError(Code.INVALID_ARGUMENT, "PROMPT_TOO_LONG", what, None, [violation]))
    assert (error.param, str(error)) == ("prompt", what)


def test_a_refusal_says_when_to_retry_or_that_no_retry_helps() -> None:
    late = PeerError(Code.RESOURCE_EXHAUSTED, "OVERLOADED", "busy", retry_after=1.25)
    assert error_of_peer(late).headers == {"retry-after": "2", "retry-after-ms": "1250"}
    never = PeerError(Code.RESOURCE_EXHAUSTED, "PRINCIPAL_LIMIT", "too many at once")
    assert error_of_peer(never).headers == {"x-should-retry": "false"}
