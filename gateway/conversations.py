"""Conversations of the Responses API. A conversation is a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from gateway.bodies import described
from gateway.errors import ApiError
from gateway.fields import DO_NOT_COLLECT, Fields, Metadata, is_kept_out
from gateway.gateway import Caller, gateway_of
from gateway.reading import Reading
from gateway.responses.beginning import find_conversation, named_fields
from gateway.responses.bodies import ConversationObject, Deleted, ItemPage
from gateway.responses.ids import TurnId, conversation_id
from gateway.responses.items import MessageItem, input_items
from gateway.responses.pages import PAGE_QUERY, Page, PageOptions, known_query, page_of
from gateway.responses.writing import AnswerWriter
from slipstream.client import AsyncClient, Message, Result, SessionInfo, Settings, ToolCall

router = APIRouter()


class ConversationRequest(Fields):
    """A request for a new conversation."""

    items: list[MessageItem] | None = Field(
        None, description="one message with role `system` or `developer`: the conversation's instructions"
    )
    metadata: Metadata | None = Field(
        None,
        description=f"up to 16 texts by key, which are kept with the conversation. `do_not_collect`: {DO_NOT_COLLECT}. It "
        "holds for all responses in the conversation",
    )

    def system(self) -> str | None:
        """Return the instructions; None if there are none. ApiError."""
        messages = [item.message() for item in self.items or ()]
        if len(messages) > 1 or (messages and messages[0].role != "system"):
            message = "items may have one message of role system or developer: send others with a response"
            raise ApiError(400, message, param="items")
        return messages[0].content if messages else None


class ConversationUpdate(Fields):
    """A request for other metadata."""

    metadata: Metadata | None = Field(
        None,
        description="takes the place of the conversation's metadata. `do_not_collect` holds for its next responses; what was "
        "kept out stays out",
    )


@router.post("/v1/conversations", responses=described(ConversationObject))
async def create_conversation(asked: ConversationRequest, caller: Caller) -> dict[str, Any]:
    """Begin a conversation, to which responses are added."""
    with named_fields():
        settings = Settings(do_not_collect=is_kept_out(asked.metadata) or None)
        session = await caller.create_session(asked.system(), settings, metadata=asked.metadata)
    return _description(session.info)


@router.get("/v1/conversations/{conversation}", responses=described(ConversationObject))
async def get_conversation(conversation: str, caller: Caller) -> dict[str, Any]:
    """Describe a conversation."""
    return _description((await find_conversation(caller, conversation)).info)


@router.post("/v1/conversations/{conversation}", responses=described(ConversationObject))
async def update_conversation(asked: ConversationUpdate, conversation: str, caller: Caller) -> dict[str, Any]:
    """Change a conversation's metadata."""
    session = await find_conversation(caller, conversation)
    return _description(await caller.update_session(session.session_id, asked.metadata or {}))


@router.delete("/v1/conversations/{conversation}", responses=described(Deleted))
async def delete_conversation(conversation: str, caller: Caller) -> dict[str, Any]:
    """Delete a conversation with its responses."""
    await (await find_conversation(caller, conversation)).delete()
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.get(
    "/v1/conversations/{conversation}/items", responses=described(ItemPage), dependencies=[known_query(*PAGE_QUERY)]
)
async def list_items(conversation: str, request: Request, caller: Caller, options: PageOptions) -> Page:
    """List a conversation's inputs and answers, as far as they have ended."""
    session, gateway = await find_conversation(caller, conversation), gateway_of(request)
    reading = await gateway.reading(caller, await gateway.model(caller), has_tools=False)
    kept = await caller.export_session(session.session_id)
    items = input_items([Message("system", kept["system"])], TurnId(session.session_id, 0)) if "system" in kept else []
    for told in kept["turns"]:
        turn = TurnId(session.session_id, told["turn"])
        items += _items_of(turn, told, await _reading_of(caller, turn, reading))
    return page_of(items, options)


async def _reading_of(caller: AsyncClient, turn: TurnId, reading: Reading) -> Reading:
    """Return how a turn's answer is read: one that follows a structure begins with no reasoning
    unless it says so."""
    if reading.reasoning != "deepseek_r1":
        return reading
    asked = await caller.get_turn(*turn)
    return replace(reading, is_structured=asked.settings.HasField("structure"))


def _items_of(turn: TurnId, kept: Mapping[str, Any], reading: Reading) -> list[dict[str, Any]]:
    """Return the items of a turn that has ended, as an export has it."""
    said = [_message_of(message) for message in kept.get("messages", ())] or [Message("user", kept["content"])]
    writer = AnswerWriter(turn, reading, tells_logprobs=False)
    writer.write(Result(kept.get("text", ""), finish_reason=kept["finishReason"].removeprefix("FINISH_REASON_")))
    return [*input_items(said, turn), *writer.items]


def _message_of(kept: Mapping[str, Any]) -> Message:
    calls = [
        ToolCall(call["name"], call.get("arguments", ""), call.get("id", "")) for call in kept.get("toolCalls", ())
    ]
    role = kept["role"].removeprefix("ROLE_").lower()
    return Message(role, kept.get("content", ""), calls, kept.get("toolCallId", ""))


def _description(session: SessionInfo) -> dict[str, Any]:
    return {
        "id": conversation_id(session.session_id),
        "object": "conversation",
        "created_at": int(session.create_time.timestamp()),
        "metadata": session.metadata,
    }
