"""Conversions of the requests and answers of Tokenize and Detokenize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from orchestrator.contract.fields import given, time_of
from orchestrator.contract.messages import MAX_MESSAGES, messages_of, options_of
from orchestrator.sessions.turns.pair import Conversation
from orchestrator.sessions.turns.tokenizing import MAX_DETOKENIZED, Tokenization
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.v1 import orchestrator_pb2

MAX_RESPONSE_BYTES = 4_000_000
"""Most bytes of a response. Many clients take messages of at most 4 MiB."""

_LEAST_OF_STRING = 2
"""Bytes of a string in a message, less those of its text."""

_OF_TEXTS, _OF_CONVERSATIONS = ("add_special_tokens",), ("add_generation_prompt", "template_time", "template_options")

ResponseT = TypeVar("ResponseT", orchestrator_pb2.TokenizeResponse, orchestrator_pb2.DetokenizeResponse)


def tokenization_of(request: orchestrator_pb2.TokenizeRequest) -> Tokenization:
    """Convert a Tokenize request. InvalidFieldsError."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidFieldsError([FieldViolation("prompt", "must be set: text or conversation")])
    violations = [
        FieldViolation(name, f"must not be set together with {kind}")
        for name in (_OF_CONVERSATIONS if kind == "text" else _OF_TEXTS)
        if given(request, name) is not None
    ]
    if violations:
        raise InvalidFieldsError(violations)
    if kind == "text":
        return Tokenization(
            request.text,
            add_special_tokens=given(request, "add_special_tokens") is not False,
            token_strings=request.token_strings,
        )
    count = len(request.conversation.messages)
    if not 1 <= count <= MAX_MESSAGES:
        what = f"must be from 1 to {MAX_MESSAGES}, but are {count}"
        raise InvalidFieldsError([FieldViolation("conversation.messages", what)])
    messages = messages_of(request.conversation.messages, "conversation.messages", ends_with_user=False)
    options = options_of(request.template_options)
    conversation = Conversation(messages, given(request, "add_generation_prompt") is not False, options)
    return Tokenization(conversation, time_of(request, "template_time"), token_strings=request.token_strings)


def tokens_of(request: orchestrator_pb2.DetokenizeRequest) -> Sequence[int]:
    """Return the tokens of a Detokenize request. InvalidFieldsError if they are too many."""
    count = len(request.token_ids)
    if count > MAX_DETOKENIZED:
        raise InvalidFieldsError([FieldViolation("token_ids", f"may be at most {MAX_DETOKENIZED}, but are {count}")])
    return request.token_ids


def tokens_response(
    tokens: Sequence[int], strings: Sequence[str], context_length: int, field: str
) -> orchestrator_pb2.TokenizeResponse:
    """Return the response with these tokens. InvalidFieldsError as `answered`: far too many are
    refused before a message is made of them, for that takes the event loop's time."""
    _check_size(len(tokens) + _LEAST_OF_STRING * len(strings) + sum(map(len, strings)), field)
    return answered(
        orchestrator_pb2.TokenizeResponse(
            token_ids=tokens, token_count=len(tokens), context_length=context_length, token_strings=strings
        ),
        field,
    )


def answered(response: ResponseT, field: str) -> ResponseT:
    """Return a response that clients can receive. InvalidFieldsError, which names the ``field``
    that asks for too much."""
    _check_size(response.ByteSize(), field)
    return response


def _check_size(least: int, field: str) -> None:
    if least > MAX_RESPONSE_BYTES:
        what = f"asks for too long an answer: {least} bytes or more, and at most {MAX_RESPONSE_BYTES} are sent"
        raise InvalidFieldsError([FieldViolation(field, what)])
