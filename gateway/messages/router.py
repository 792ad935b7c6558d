"""The endpoints of Anthropic's Messages API."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answers import Answers
from gateway.errors import error_of_peer
from gateway.gateway import Caller, gateway_of
from gateway.messages.errors import NAMES, MessagesRoute
from gateway.messages.form import MessageForm
from gateway.messages.request import CountRequest, MessageRequest
from gateway.responding import STREAMED, respond
from slipstream.client import PeerError

router = APIRouter(route_class=MessagesRoute)


@router.post("/v1/messages", responses=STREAMED)
async def create_message(asked: MessageRequest, request: Request, caller: Caller) -> Response:
    """Answer a conversation, in Anthropic's form."""
    gateway = gateway_of(request)
    tools, (messages, names) = asked.tool_use(), asked.conversation()
    model = await gateway.model(caller)
    model.check_name(asked.model)
    reading = await gateway.reading(caller, model, has_tools=bool(tools.offered))
    asked.check(reading)
    structure = asked.structure(tools.structure(reading.tool_format))
    reading = reading.of(tools, structure)
    settings = asked.settings(structure, reading)
    reply = await caller.answer(messages, settings, template_options=asked.template_options(tools))
    answers = Answers(caller, [reply], {**NAMES, **names, **asked.tool_names(), **tools.error_names()})
    form = MessageForm(model, f"msg_{secrets.token_hex(12)}", reading)
    return await respond(request, answers, form, stream=asked.stream, is_marked=False)


@router.post("/v1/messages/count_tokens")
async def count_tokens(asked: CountRequest, request: Request, caller: Caller) -> dict[str, int]:
    """Count the tokens of a conversation's prompt, in Anthropic's form."""
    gateway = gateway_of(request)
    (messages, names), options = asked.conversation(), asked.template_options(asked.tool_use())
    model = await gateway.model(caller)
    model.check_name(asked.model)
    asked.check(await gateway.reading(caller, model, has_tools=False))
    try:
        tokens = await caller.tokenize(messages, template_options=options)
    except PeerError as error:
        raise error_of_peer(error, {**NAMES, **names, **asked.tool_names()}) from error
    return {"input_tokens": len(tokens.token_ids)}
