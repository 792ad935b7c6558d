"""Responses that the orchestrator keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.errors import ApiError
from gateway.gateway import Model
from gateway.reading import Reading
from gateway.responses.ids import TurnId, turn_of
from gateway.responses.note import Note, note_of
from gateway.responses.resource import AskedResponse, ToldSettings, ToldTool
from slipstream.client import AsyncClient, Message, PeerError
from slipstream.errors import Code


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response that the orchestrator keeps."""

    turn: TurnId
    note: Note
    settings: ToldSettings
    system: str | None
    messages: list[Message]
    """The messages that it answers."""
    tools: list[ToldTool]
    is_structured: bool
    is_running: bool

    def asked(self, model: Model) -> AskedResponse:
        """Return the response as it was asked for."""
        instructions = self.system if self.note.is_instructed else None
        return AskedResponse(self.note, self.settings, instructions, self.tools, model)

    def reading(self, reading: Reading) -> Reading:
        """Return how the answer is read, where ``reading`` is the gateway's way."""
        return replace(
            reading,
            tool_format=reading.tool_format if self.tools else None,
            is_structured=self.is_structured,
            one_call=not self.note.parallel_tool_calls,
        )


async def kept_response(caller: AsyncClient, response_id: str) -> KeptResponse:
    """Return a response of the caller's. ApiError if there is none."""
    turn = turn_of(response_id)
    if turn is None:
        raise _not_found(response_id)
    try:
        told = await caller.get_turn(turn.session_id, turn.turn)
    except PeerError as error:
        if error.code is Code.NOT_FOUND:
            raise _not_found(response_id) from error
        raise
    note = note_of(told.note)
    if note is None or not note.store:
        raise _not_found(response_id)
    settings, sampling = told.settings, told.settings.sampling
    told_settings = ToldSettings(
        sampling.temperature if sampling.HasField("temperature") else None,
        sampling.top_p if sampling.HasField("top_p") else None,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        settings.max_token_count if settings.HasField("max_token_count") else None,
        settings.structure.json_schema if settings.structure.HasField("json_schema") else None,
    )
    messages = [Message.from_message(said) for said in told.messages] or [Message("user", told.content)]
    tools = [
        ToldTool(tool.name, tool.description if tool.HasField("description") else None, tool.parameters)
        for tool in told.template_options.tools
    ]
    is_structured = settings.HasField("structure")
    return KeptResponse(turn, note, told_settings, told.system, messages, tools, is_structured, told.running)


def _not_found(response_id: str) -> ApiError:
    message = f"there is no response {response_id!r}: it may have been deleted, or it was kept for too long"
    return ApiError(404, message, kind="not_found_error", param="response_id", code="response_not_found")
