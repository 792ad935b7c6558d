"""The endpoints of responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from gateway.answers import Answers, unless_left
from gateway.bodies import described
from gateway.errors import ApiError
from gateway.gateway import Caller, gateway_of
from gateway.responding import respond
from gateway.responses.beginning import NAMES, begin, field_names
from gateway.responses.bodies import Deleted, ItemPage, ResponseEvent, ResponseObject
from gateway.responses.form import ResponseForm
from gateway.responses.ids import TurnId
from gateway.responses.items import input_items
from gateway.responses.keeping import KeptResponse, kept_response
from gateway.responses.pages import PAGE_QUERY, Page, PageOptions, known_query, page_of
from gateway.responses.request import ResponseRequest
from gateway.responses.resource import AskedResponse, has_ended
from gateway.responses.tools import told_tools
from slipstream.client import AsyncClient, AsyncReply

router = APIRouter()


@router.post("/v1/responses", responses=described(ResponseObject, ResponseEvent))
async def create_response(asked: ResponseRequest, request: Request, caller: Caller) -> Response:
    """Answer an input, and keep the response."""
    gateway, tools = gateway_of(request), asked.tool_use()
    note, names = asked.note(), field_names(asked)
    model = await gateway.model(caller)
    model.check_name(asked.model)
    reading = await gateway.reading(caller, model, has_tools=bool(tools.offered))
    settings = asked.turn_settings(reading.tool_format)
    reply = await begin(caller, asked, settings, note, names)
    form = ResponseForm(
        AskedResponse(note, asked.told_settings(), asked.instructions or None, told_tools(tools), model),
        reading.of(tools, settings.structure),
    )
    # A refused message leaves a session without a turn, which goes unless it is a conversation.
    answers = Answers(caller, [reply], names, keeps=note.in_conversation)
    try:
        await unless_left(request, answers.begin())
    except BaseException:
        gateway_of(request).run_later(answers.end())
        raise
    answers.keeps = note.store
    if note.background:
        return await _in_background(request, caller, form, reply, answers, stream=asked.stream)
    return await respond(request, answers, form, stream=asked.stream)


async def _in_background(
    request: Request, caller: AsyncClient, form: ResponseForm, reply: AsyncReply, answers: Answers, *, stream: bool
) -> Response:
    """Let a response go on by itself, and return it as it is, or its events."""
    await reply.detach()
    gateway_of(request).run_later(answers.end())
    turn = TurnId(reply.result.session_id, reply.result.turn)
    if not stream:
        return JSONResponse(form.asked.running(turn))
    return await respond(request, await _watched(caller, turn), form, stream=True)


@router.get(
    "/v1/responses/{response_id}",
    responses=described(ResponseObject, ResponseEvent),
    dependencies=[known_query("stream", "starting_after", "include", "include_obfuscation")],
)
async def get_response(
    response_id: str,
    request: Request,
    caller: Caller,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include: Annotated[list[Literal["message.output_text.logprobs"]] | None, Query()] = None,
    include_obfuscation: Literal["false"] | None = None,
) -> Response:
    """Return a response that is kept. With `stream` its events, after the one with number
    `starting_after`. It has the log-probabilities that its request asked for."""
    if starting_after is not None and not stream:
        raise ApiError(400, "starting_after is only allowed with stream=true", param="starting_after")
    kept = await kept_response(caller, response_id)
    if not stream:
        return JSONResponse(await _body(request, caller, kept))
    form = await _form(request, caller, kept, 0 if starting_after is None else starting_after + 1)
    return await respond(request, await _watched(caller, kept.turn), form, stream=True)


@router.post("/v1/responses/{response_id}/cancel", responses=described(ResponseObject))
async def cancel_response(response_id: str, request: Request, caller: Caller) -> Response:
    """End a response in the background early. Its text so far stays."""
    kept = await kept_response(caller, response_id)
    if not kept.note.background:
        raise ApiError(400, "only a response with background: true can be cancelled", param="response_id")
    await caller.cancel(*kept.turn)
    return JSONResponse(await _body(request, caller, await kept_response(caller, response_id)))


@router.delete("/v1/responses/{response_id}", responses=described(Deleted))
async def delete_response(response_id: str, caller: Caller) -> dict[str, Any]:
    """Delete a response. Those that follow it stay."""
    kept = await kept_response(caller, response_id)
    if kept.note.in_conversation:
        raise ApiError(400, "the response is a part of its conversation: delete that", param="response_id")
    await caller.delete_session(kept.turn.session_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get(
    "/v1/responses/{response_id}/input_items", responses=described(ItemPage), dependencies=[known_query(*PAGE_QUERY)]
)
async def list_input_items(response_id: str, caller: Caller, options: PageOptions) -> Page:
    """List the input of a response, without what it follows."""
    kept = await kept_response(caller, response_id)
    return page_of(input_items(kept.messages, kept.turn), options)


async def _body(request: Request, caller: AsyncClient, kept: KeptResponse) -> dict[str, Any]:
    """Return a response as it is now."""
    form = await _form(request, caller, kept)
    if kept.is_running:
        return form.asked.running(kept.turn)
    answers = await _watched(caller, kept.turn)
    try:
        await unless_left(request, answers.complete())
    except ApiError as error:
        if not has_ended(answers.results[0]):
            raise
        return form.ended(answers.results[0], error)
    finally:
        gateway_of(request).run_later(answers.end())
    return form.whole(answers.results)


async def _form(request: Request, caller: AsyncClient, kept: KeptResponse, first_event: int = 0) -> ResponseForm:
    """Return the form of a response that is kept."""
    gateway = gateway_of(request)
    model = await gateway.model(caller)
    reading = await gateway.reading(caller, model, has_tools=bool(kept.tools))
    return ResponseForm(kept.asked(model), kept.reading(reading), first_event)


async def _watched(caller: AsyncClient, turn: TurnId) -> Answers:
    return Answers(caller, [await caller.watch(*turn)], NAMES, keeps=True, counts=False)
