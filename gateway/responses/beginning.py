"""The beginning of a response: its session, and the message that starts its turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gateway.errors import ApiError, error_of_peer
from gateway.fields import is_kept_out
from gateway.responses.ids import session_of, turn_of
from gateway.responses.items import messages_of
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
    "note": "metadata",
}
"""Names of fields that are others than in chat completions."""


def field_names(asked: ResponseRequest) -> dict[str, str]:
    """Return the names of a request's fields that are others than in chat completions. ApiError if
    the input has no message."""
    tools = {
        f"tools[{index}].function.{field}": f"tools[{index}].{field}"
        for index in range(len(asked.tools or ()))
        for field in ("name", "parameters")
    }
    return {**NAMES, **asked.tool_use().error_names(), **tools, **messages_of(asked.input)[1]}


@contextmanager
def named_fields(names: Mapping[str, str] = NAMES) -> Iterator[None]:
    """Let the orchestrator's errors name the fields of a request: ApiError."""
    try:
        yield
    except PeerError as error:
        raise error_of_peer(error, names) from error


async def begin(
    caller: AsyncClient, asked: ResponseRequest, settings: Settings, note: Note, names: Mapping[str, str]
) -> AsyncReply:
    """Send a response's input to its session. ``names`` are those of `field_names`. ApiError if
    there is no such session or conversation, or the orchestrator creates none."""
    with named_fields(names):
        session = await _session(caller, asked)
        if is_kept_out(session.info.metadata):  # a conversation's hold for its responses
            settings = replace(settings, do_not_collect=True)
        return await session.send(messages_of(asked.input)[0], settings, note=note.text())


async def _session(caller: AsyncClient, asked: ResponseRequest) -> AsyncSession:
    """Return the conversation's session, or else a new one, which begins like that of the response
    before. PeerError, ApiError."""
    if asked.conversation_id is not None:
        return await find_conversation(caller, asked.conversation_id)
    if asked.previous_response_id is not None:
        return await _following(caller, asked.previous_response_id, asked)
    options = asked.template_options()
    return await caller.create_session(asked.instructions or None, metadata=asked.metadata, template_options=options)


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


async def _following(caller: AsyncClient, name: str, asked: ResponseRequest) -> AsyncSession:
    """Return a session that begins like that of another response, with what the request tells to be
    its own. PeerError, ApiError."""
    turn = turn_of(name)
    try:
        if turn is not None:
            options = asked.template_options()
            session = await caller.fork_session(*turn, system=asked.instructions or "", template_options=options)
            if session.info.metadata != (asked.metadata or {}):
                await caller.update_session(session.session_id, asked.metadata or {})
            return session
    except PeerError as error:
        if error.code is not Code.NOT_FOUND:
            raise
    message = f"there is no response {name!r} that has ended"
    raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
