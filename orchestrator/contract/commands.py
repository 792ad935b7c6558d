"""Conversions of requests into the values that `orchestrator.sessions` works with.
InvalidFieldsError for requests without a meaning."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from array import array
from collections.abc import Callable, Mapping

from google.protobuf.message import Message as ProtobufMessage

from orchestrator.contract.fields import given, time_of
from orchestrator.contract.messages import messages_of, options_of
from orchestrator.contract.settings import settings_of
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.choices import MAX_CHOICES
from orchestrator.sessions.conversation.messages import Message, from_user
from orchestrator.sessions.entrance.chat_commands import BadCommand, CancelTurn, Command, SendMessage, StartChat
from orchestrator.sessions.entrance.requests import Fork, Generation, NewSession, UserMessage
from orchestrator.sessions.turns.pair import Conversation, Prompt
from orchestrator.sessions.turns.predictions import MAX_PREDICTION_TOKENS
from orchestrator.sessions.turns.request_names import MAX_REQUEST_ID_LENGTH, NAMELESS, RequestName, check_request_id
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.v1 import orchestrator_pb2

MAX_PROMPT_TOKENS = 2**20
"""Most prompt tokens of a request. More would take long to read, and no context holds them."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Most entries of a session's metadata, and most characters of a key and of a value."""

MAX_NOTE = 65_536
"""Most characters of a turn's note."""

_DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE = 100, 1000
_CURSOR = struct.Struct(">q")


def generation_of(request: orchestrator_pb2.GenerateRequest, caller: Principal) -> Generation:
    """Convert a Generate request."""
    count = request.choice_count or 1
    if not 1 <= count <= MAX_CHOICES:
        what = f"must be from 0 to {MAX_CHOICES}, but is {count}"
        raise InvalidFieldsError([FieldViolation("choice_count", what)])
    if len(request.after_token_counts) > count:
        what = f"must be one for each of the {count} choices at most, but are {len(request.after_token_counts)}"
        raise InvalidFieldsError([FieldViolation("after_token_counts", what)])
    for seen in request.after_token_counts:
        check_position(seen, "after_token_counts")
    clock, name = time_of(request, "template_time"), _name(request.request_id, request, "after_token_counts")
    settings = settings_of(request.settings)
    return Generation(_prompt(request), settings, count, clock, name, caller, _prediction(request))


def session_of(request: orchestrator_pb2.CreateSessionRequest, caller: Principal) -> NewSession:
    """Convert a CreateSession request."""
    settings, clock = settings_of(request.settings), time_of(request, "template_time")
    name, metadata = _name(request.request_id, request), metadata_of(request.metadata)
    options = options_of(request.template_options)
    return NewSession(given(request, "system"), settings, clock, name, caller, metadata, options)


def metadata_of(said: Mapping[str, str]) -> dict[str, str]:
    """Return what a caller keeps with a session. InvalidFieldsError."""
    checks = (
        (len(said) <= MAX_METADATA, f"may have at most {MAX_METADATA} entries, but has {len(said)}"),
        (
            all(1 <= len(key) <= MAX_METADATA_KEY for key in said),
            f"must have keys of 1 to {MAX_METADATA_KEY} characters",
        ),
        (
            all(len(value) <= MAX_METADATA_VALUE for value in said.values()),
            f"must have values of at most {MAX_METADATA_VALUE} characters",
        ),
    )
    violations = [FieldViolation("metadata", what) for is_fine, what in checks if not is_fine]
    if violations:
        raise InvalidFieldsError(violations)
    return dict(said)


def message_of(request: orchestrator_pb2.SendMessageRequest, caller: Principal) -> UserMessage:
    """Convert a SendMessage request."""
    check_position(request.after_token_count, "after_token_count")
    name = _name(request.request_id, request, "session_id", "after_token_count")
    if len(request.note) > MAX_NOTE:
        what = f"must have at most {MAX_NOTE} characters, but has {len(request.note)}"
        raise InvalidFieldsError([FieldViolation("note", what)])
    settings, prediction = settings_of(request.settings), _prediction(request)
    return UserMessage(_said(request), settings, name, caller, prediction, request.note)


def _said(request: orchestrator_pb2.SendMessageRequest) -> tuple[Message, ...]:
    """Return the messages that a turn answers. InvalidFieldsError."""
    if not request.messages:
        if not request.content:
            raise InvalidFieldsError([FieldViolation("content", "must not be empty")])
        return from_user(request.content)
    if request.content:
        raise InvalidFieldsError([FieldViolation("content", "must not be set together with messages")])
    return messages_of(request.messages, "messages", ends_with_user=True)


def fork_of(request: orchestrator_pb2.ForkSessionRequest) -> Fork:
    """Convert a ForkSession request."""
    options = options_of(request.template_options) if request.HasField("template_options") else None
    return Fork(given(request, "after_turn"), given(request, "system"), _name(request.request_id, request), options)


def check_position(after_token_count: int, field: str) -> None:
    """Refuse a negative number of tokens, before any work begins: InvalidFieldsError."""
    if after_token_count < 0:
        raise InvalidFieldsError([FieldViolation(field, f"must be 0 or more, but is {after_token_count}")])


def command_of(request: orchestrator_pb2.ChatRequest, caller: Callable[[], Principal]) -> Command:
    """Convert a command of a chat. BadCommand if it has no meaning, or ``caller`` raises an
    error about the sender."""
    try:
        check_request_id(request.request_id)
        return _command(request, caller())
    except SlipstreamError as error:
        return BadCommand(error, request.request_id[:MAX_REQUEST_ID_LENGTH])


def _command(request: orchestrator_pb2.ChatRequest, caller: Principal) -> Command:
    kind, name = request.WhichOneof("command"), request.request_id
    if kind == "start":
        start = request.start
        new = orchestrator_pb2.CreateSessionRequest(
            request_id=name,
            system=given(start, "system"),
            settings=given(start, "settings"),
            template_time=given(start, "template_time"),
            metadata=start.metadata,
            template_options=given(start, "template_options"),
        )
        return StartChat(given(start, "session_id"), session_of(new, caller))
    if kind == "message":
        said = request.message
        check_position(said.after_token_count, "message.after_token_count")
        alone = orchestrator_pb2.SendMessageRequest(
            request_id=name,
            content=said.content,
            messages=said.messages,
            settings=given(said, "settings"),
            prediction=given(said, "prediction"),
        )
        return SendMessage(message_of(alone, caller), said.after_token_count, said.traceparent)
    if kind == "cancel":
        which = request.cancel.WhichOneof("which")
        if which is None:
            raise InvalidFieldsError([FieldViolation("cancel", "must name its turn, or the request_id of its message")])
        return CancelTurn(getattr(request.cancel, which), name, caller)
    raise InvalidFieldsError([FieldViolation("command", "must be set: start, message or cancel")])


def _name(request_id: str, request: ProtobufMessage, *aside: str) -> RequestName:
    """Return a request's id with a fingerprint of its content, which is all but the id and the
    fields ``aside``."""
    if not request_id:
        return NAMELESS
    asked = type(request)()
    asked.CopyFrom(request)
    for field in ("request_id", *aside):
        asked.ClearField(field)
    digest = hashlib.blake2b(asked.SerializeToString(deterministic=True), digest_size=16)
    return RequestName(request_id, digest.digest())


def _prompt(request: orchestrator_pb2.GenerateRequest) -> Prompt:
    kind = request.WhichOneof("prompt")
    if kind != "conversation" and request.HasField("template_options"):
        raise InvalidFieldsError([FieldViolation("template_options", "must only be set together with conversation")])
    if kind == "text" and request.text:
        return request.text
    count = len(request.tokens.token_ids)
    if count > MAX_PROMPT_TOKENS:
        what = f"may be at most {MAX_PROMPT_TOKENS}, but are {count}"
        raise InvalidFieldsError([FieldViolation("tokens.token_ids", what)])
    if kind == "tokens" and request.tokens.token_ids:
        return tuple(request.tokens.token_ids)
    if kind == "conversation" and request.conversation.messages:
        messages = messages_of(request.conversation.messages, "conversation.messages", ends_with_user=True)
        return Conversation(messages, options=options_of(request.template_options))
    raise InvalidFieldsError([FieldViolation(kind or "prompt", "must not be empty: set text, conversation or tokens")])


def _prediction(
    request: orchestrator_pb2.GenerateRequest | orchestrator_pb2.SendMessageRequest,
) -> str | array[int] | None:
    """Return what the answer probably contains; None if the caller says nothing."""
    if not request.HasField("prediction"):
        return None
    prediction = request.prediction
    kind, count = prediction.WhichOneof("content"), len(prediction.tokens.token_ids)
    if count > MAX_PREDICTION_TOKENS:
        what = f"may be at most {MAX_PREDICTION_TOKENS}, but are {count}"
        raise InvalidFieldsError([FieldViolation("prediction.tokens.token_ids", what)])
    if kind == "text" and prediction.text:
        return prediction.text
    if count:
        return array("i", prediction.tokens.token_ids)
    where = f"prediction.{kind}" if kind else "prediction"
    raise InvalidFieldsError([FieldViolation(where, "must not be empty: set text or tokens")])


_MOST_TRACED_TURNS = 64


def turn_count_of(request: orchestrator_pb2.GetTurnTracesRequest) -> int:
    """Return how many turns are asked for. InvalidFieldsError."""
    if not 0 <= request.turn_count <= _MOST_TRACED_TURNS:
        what = f"must be from 0 to {_MOST_TRACED_TURNS}, but is {request.turn_count}"
        raise InvalidFieldsError([FieldViolation("turn_count", what)])
    return request.turn_count or 1


def page_size_of(request: orchestrator_pb2.ListSessionsRequest) -> int:
    """Return how many sessions a page has. InvalidFieldsError."""
    size = request.page_size or _DEFAULT_PAGE_SIZE
    if not 1 <= size <= _MAX_PAGE_SIZE:
        raise InvalidFieldsError([FieldViolation("page_size", f"must be from 0 to {_MAX_PAGE_SIZE}, but is {size}")])
    return size


def cursor_of(page_token: str) -> tuple[int, str] | None:
    """Return the position after the previous page: its last session's time of creation and id.
    None for the first page."""
    if not page_token:
        return None
    try:
        data = base64.urlsafe_b64decode(page_token.encode())
        created, session_id = _CURSOR.unpack_from(data)[0], data[_CURSOR.size :].decode()
        if not session_id or "\0" in session_id:  # which no session has, and not every database could look for
            raise ValueError("the id of no session")
    except (binascii.Error, struct.error, ValueError) as error:
        what = "must come from the previous response; list again"
        raise InvalidFieldsError([FieldViolation("page_token", what)]) from error
    return created, session_id


def page_token(cursor: tuple[int, str]) -> str:
    """Encode a position in the list of sessions. It stays valid when sessions are created or
    deleted."""
    return base64.urlsafe_b64encode(_CURSOR.pack(cursor[0]) + cursor[1].encode()).decode()
