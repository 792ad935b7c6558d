"""Conversations of the Responses API. A conversation is a session."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from gateway.errors import ApiError
from gateway.fields import Fields
from gateway.gateway import Caller
from gateway.responses.beginning import find_conversation, named_fields
from gateway.responses.ids import conversation_id
from gateway.responses.items import MessageItem, message_items
from gateway.responses.pages import PAGE_QUERY, Page, PageOptions, known_query, page_of
from gateway.responses.request import Metadata
from slipstream.client import SessionInfo

router = APIRouter()


class ConversationRequest(Fields):
    """A request for a new conversation."""

    items: list[MessageItem] | None = Field(
        None, description="one message with role `system` or `developer`: the conversation's instructions"
    )
    metadata: Metadata | None = Field(None, description="up to 16 texts by key, which are kept with the conversation")

    def system(self) -> str | None:
        """Return the instructions; None if there are none. ApiError."""
        pairs = [item.pair() for item in self.items or ()]
        if len(pairs) > 1 or (pairs and pairs[0][0] != "system"):
            message = "items may have one message of role system or developer: send others with a response"
            raise ApiError(400, message, param="items")
        return pairs[0][1] if pairs else None


@router.post("/v1/conversations")
async def create_conversation(asked: ConversationRequest, caller: Caller) -> dict[str, Any]:
    """Begin a conversation, to which responses are added."""
    with named_fields():
        session = await caller.create_session(asked.system(), metadata=asked.metadata)
    return _description(session.info)


@router.get("/v1/conversations/{conversation}")
async def get_conversation(conversation: str, caller: Caller) -> dict[str, Any]:
    """Describe a conversation."""
    return _description((await find_conversation(caller, conversation)).info)


@router.delete("/v1/conversations/{conversation}")
async def delete_conversation(conversation: str, caller: Caller) -> dict[str, Any]:
    """Delete a conversation with its responses."""
    await (await find_conversation(caller, conversation)).delete()
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.get("/v1/conversations/{conversation}/items", dependencies=[known_query(*PAGE_QUERY)])
async def list_items(conversation: str, caller: Caller, options: PageOptions) -> Page:
    """List a conversation's messages, inputs and answers."""
    session = await find_conversation(caller, conversation)
    pairs = [(message.role, message.content) for message in session.messages]
    return page_of(message_items(pairs, f"msg_{session.session_id}"), options)


def _description(session: SessionInfo) -> dict[str, Any]:
    return {
        "id": conversation_id(session.session_id),
        "object": "conversation",
        "created_at": int(session.create_time.timestamp()),
        "metadata": session.metadata,
    }
