"""The beginning of a response: its session, and the message that starts its turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.errors import ApiError, error_of_peer
from gateway.responses.ids import session_of, turn_of
from gateway.responses.items import pairs_of
from gateway.responses.note import Note
from gateway.responses.request import ResponseRequest
from slipstream.client import AsyncClient, AsyncReply, AsyncSession, PeerError, Settings
from slipstream.errors import Code

NAMES: Mapping[str, str] = {
    "prompt": "input",
    "content": "input",
    "messages": "input",
    "system": "instructions",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "logprobs": "top_logprobs",
}
"""Names of fields that are others than in chat completions."""


@contextmanager
def named_fields() -> Iterator[None]:
    """Let the orchestrator's errors name the fields of a response's request: ApiError."""
    try:
        yield
    except PeerError as error:
        raise error_of_peer(error, NAMES) from error


async def begin(caller: AsyncClient, asked: ResponseRequest, settings: Settings, note: Note) -> AsyncReply:
    """Send a response's input to its session. ApiError if there is no such session or conversation,
    or the orchestrator creates none."""
    pairs = pairs_of(asked.input)
    if len(pairs) != 1 or pairs[0][0] != "user":
        raise ApiError(400, "input must be one message of the user", param="input")
    with named_fields():
        session = await _session(caller, asked)
        return await session.send(pairs[0][1], settings, note=note.text())


async def _session(caller: AsyncClient, asked: ResponseRequest) -> AsyncSession:
    """Return the conversation's session, or else a new one, which begins like that of the response
    before. PeerError, ApiError."""
    if asked.conversation_id is not None:
        return await find_conversation(caller, asked.conversation_id)
    if asked.previous_response_id is not None:
        return await _following(caller, asked.previous_response_id, asked.instructions)
    return await caller.create_session(asked.instructions or None, metadata=asked.metadata)


async def find_conversation(caller: AsyncClient, name: str) -> AsyncSession:
    """Return the session that a conversation is. ApiError if there is none."""
    session_id = session_of(name)
    try:
        if session_id is not None:
            return await caller.get_session(session_id)
    except PeerError as error:
        if error.code is not Code.NOT_FOUND:
            raise
    raise ApiError(404, f"there is no conversation {name!r}", kind="not_found_error", param="conversation")


async def _following(caller: AsyncClient, name: str, instructions: str | None) -> AsyncSession:
    turn = turn_of(name)
    try:
        if turn is not None:
            return await caller.fork_session(turn.session_id, turn.turn, system=instructions or "")
    except PeerError as error:
        if error.code is not Code.NOT_FOUND:
            raise
    message = f"there is no response {name!r} that has ended"
    raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
