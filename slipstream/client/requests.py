"""Requests that both clients send. A request that changes something carries a request_id, so
that it can be sent twice."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from slipstream.client.layers import layered
from slipstream.client.messages import Said, TemplateOptions, conversation, message_list
from slipstream.client.settings import Settings
from slipstream.errors import Code, FieldViolation
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError
from slipstream.v1 import generation_pb2, orchestrator_pb2, session_pb2

TurnRequest = orchestrator_pb2.GenerateRequest | orchestrator_pb2.SendMessageRequest | orchestrator_pb2.WatchTurnRequest
"""Requests whose answer is a stream of a turn's events."""


def new_request_id() -> str:
    """Return an id that no other request has."""
    return uuid.uuid4().hex


def _message(settings: Settings | None) -> generation_pb2.GenerationSettings | None:
    return None if settings is None else settings.message()


def _timestamp(time: datetime | None) -> Timestamp | None:
    """Convert a time. A time without a zone is in UTC."""
    if time is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp


def _predicted(prediction: str | Sequence[int] | None) -> orchestrator_pb2.Prediction | None:
    """Convert a prediction. The server refuses an empty one."""
    if prediction is None:
        return None
    if isinstance(prediction, str):
        return orchestrator_pb2.Prediction(text=prediction)
    if isinstance(prediction, bytes):
        raise TypeError("a prediction must be a str or a list of token ids, but is bytes: decode it")
    return orchestrator_pb2.Prediction(tokens=orchestrator_pb2.TokenList(token_ids=prediction))


def _options(options: TemplateOptions | None) -> session_pb2.TemplateOptions | None:
    return None if options is None else options.message()


def tokenize(
    prompt: str | Sequence[Said],
    add_special_tokens: bool | None,
    add_generation_prompt: bool | None,
    template_time: datetime | None,
    template_options: TemplateOptions | None = None,
    *,
    token_strings: bool,
) -> orchestrator_pb2.TokenizeRequest:
    """Build a request for the tokens of a text, or of a conversation."""
    if isinstance(prompt, bytes):
        raise TypeError("a prompt must be a str or a list of messages, but is bytes: decode it")
    request = orchestrator_pb2.TokenizeRequest(
        add_special_tokens=add_special_tokens,
        add_generation_prompt=add_generation_prompt,
        template_time=_timestamp(template_time),
        token_strings=token_strings,
        template_options=_options(template_options),
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.conversation.CopyFrom(conversation(prompt))
    return request


def generate(
    prompt: str | Sequence[int],
    settings: Settings | None,
    request_id: str | None,
    choice_count: int = 0,
    prediction: str | Sequence[int] | None = None,
) -> orchestrator_pb2.GenerateRequest:
    """Build a request for answers to a raw text or to token ids."""
    request = orchestrator_pb2.GenerateRequest(
        settings=_message(settings),
        request_id=request_id or new_request_id(),
        choice_count=choice_count,
        prediction=_predicted(prediction),
    )
    if isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, bytes):
        raise TypeError("a prompt must be a str or a list of token ids, but is bytes: decode it")
    else:
        request.tokens.token_ids.extend(prompt)
    return request


def answer(
    messages: Sequence[Said],
    settings: Settings | None,
    template_time: datetime | None,
    request_id: str | None,
    choice_count: int = 0,
    prediction: str | Sequence[int] | None = None,
    template_options: TemplateOptions | None = None,
) -> orchestrator_pb2.GenerateRequest:
    """Build a request for answers to a conversation."""
    return orchestrator_pb2.GenerateRequest(
        conversation=conversation(messages),
        settings=_message(settings),
        request_id=request_id or new_request_id(),
        choice_count=choice_count,
        template_time=_timestamp(template_time),
        prediction=_predicted(prediction),
        template_options=_options(template_options),
    )


def create_session(
    system: str | None,
    settings: Settings | None,
    template_time: datetime | None,
    request_id: str | None,
    metadata: Mapping[str, str] | None = None,
    template_options: TemplateOptions | None = None,
) -> orchestrator_pb2.CreateSessionRequest:
    """Build a request to create a session."""
    return orchestrator_pb2.CreateSessionRequest(
        request_id=request_id or new_request_id(),
        system=system,
        settings=_message(settings),
        template_time=_timestamp(template_time),
        metadata=metadata,
        template_options=_options(template_options),
    )


def fork_session(
    session_id: str,
    after_turn: int | None,
    request_id: str | None,
    system: str | None,
    template_options: TemplateOptions | None = None,
) -> orchestrator_pb2.ForkSessionRequest:
    """Build a request to fork a session."""
    return orchestrator_pb2.ForkSessionRequest(
        session_id=session_id,
        after_turn=after_turn,
        request_id=request_id or new_request_id(),
        system=system,
        template_options=_options(template_options),
    )


def send_message(
    session_id: str,
    content: str | Sequence[Said],
    settings: Settings | None,
    below: Settings | None,
    request_id: str | None,
    prediction: str | Sequence[int] | None = None,
    note: str = "",
) -> orchestrator_pb2.SendMessageRequest:
    """Build a request with a user message, or with several messages. Its settings lie over those
    ``below``, if there are any."""
    message = _message(settings)
    if below is not None:
        message = layered((settings or Settings()).message(), below.message())
    return orchestrator_pb2.SendMessageRequest(
        session_id=session_id,
        request_id=request_id or new_request_id(),
        content=content if isinstance(content, str) else "",
        messages=[] if isinstance(content, str) else message_list(content),
        settings=message,
        prediction=_predicted(prediction),
        note=note,
    )


def check_resumed(
    system: str | None,
    template_time: datetime | None,
    metadata: Mapping[str, str] | None = None,
    template_options: TemplateOptions | None = None,
) -> None:
    """Refuse settings that only a new session takes, as the server does: PeerError."""
    given = (
        ("system", system),
        ("template_time", template_time),
        ("metadata", metadata),
        ("template_options", template_options),
    )
    bad = [name for name, value in given if value is not None]
    if bad:
        violations = [FieldViolation(name, "must be left out: a session that is resumed has its own") for name in bad]
        message = "; ".join(f"{violation.field} {violation.description}" for violation in violations)
        raise PeerError(Code.INVALID_ARGUMENT, Reason.INVALID_FIELDS, message, violations=violations)
