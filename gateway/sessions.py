"""Sessions over HTTP, for the web chat and for programs: the contract's own messages in protobuf's
JSON.

Each endpoint is one method of ``slipstream.v1.OrchestratorService``. Fields, limits and reasons are
the method's, so there is no second contract here. Parts of the path are fields of the request, and
may not be in the body too. Streams are server-sent events.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from starlette.responses import Response

from gateway.answers import unless_left
from gateway.errors import ApiError, contract_error
from gateway.gateway import Caller
from gateway.responding import STREAMED
from gateway.streaming import EventStream
from slipstream.client import AsyncClient, PeerError
from slipstream.client.json_schemas import response_schema

router = APIRouter(prefix="/slipstream/v1")

Content = Annotated[dict[str, Any], Body(description="the method's request in protobuf's JSON")]
Number = Annotated[int, Query(ge=0, le=2**31 - 1)]


def _answer(method: str) -> dict[int | str, dict[str, Any]]:
    """Return the response of a method, for the OpenAPI document."""
    return {200: {"content": {"application/json": {"schema": response_schema(method)}}}}


@router.get("/server", responses=_answer("GetServerInfo"))
async def get_server_info(caller: Caller) -> dict[str, Any]:
    """Return which models are served, and their limits: GetServerInfo."""
    return await _call(caller, "GetServerInfo", {})


@router.get("/sessions", responses=_answer("ListSessions"))
async def list_sessions(caller: Caller, page_size: Number = 0, page_token: str = "") -> dict[str, Any]:
    """List the caller's sessions, last created first: ListSessions."""
    return await _call(caller, "ListSessions", {"pageSize": page_size, "pageToken": page_token})


@router.post("/sessions", responses=_answer("CreateSession"))
async def create_session(caller: Caller, asked: Content) -> dict[str, Any]:
    """Create a session: CreateSession."""
    return await _call(caller, "CreateSession", asked)


@router.get("/sessions/{session_id}", responses=_answer("GetSession"))
async def get_session(caller: Caller, session_id: str) -> dict[str, Any]:
    """Return a session with its messages: GetSession."""
    return await _call(caller, "GetSession", {"sessionId": session_id})


@router.patch("/sessions/{session_id}", responses=_answer("UpdateSession"))
async def update_session(caller: Caller, session_id: str, asked: Content) -> dict[str, Any]:
    """Change what is kept with a session, such as its title: UpdateSession."""
    return await _call(caller, "UpdateSession", _with(asked, session_id=session_id))


@router.delete("/sessions/{session_id}", responses=_answer("DeleteSession"))
async def delete_session(caller: Caller, session_id: str) -> dict[str, Any]:
    """Delete a session and end its turn: DeleteSession."""
    return await _call(caller, "DeleteSession", {"sessionId": session_id})


@router.post("/sessions/{session_id}/fork", responses=_answer("ForkSession"))
async def fork_session(caller: Caller, session_id: str, asked: Content) -> dict[str, Any]:
    """Create a session that begins as another one was after one of its turns: ForkSession."""
    return await _call(caller, "ForkSession", _with(asked, session_id=session_id))


@router.get("/sessions/{session_id}/export")
async def export_session(caller: Caller, session_id: str) -> dict[str, Any]:
    """Return all that is stored of a session: ExportSession, with its turns in `turns`."""
    try:
        return await caller.export_session(session_id)
    except PeerError as error:
        raise contract_error(error) from error


@router.post("/sessions/{session_id}/messages", responses=STREAMED)
async def send_message(request: Request, caller: Caller, session_id: str, asked: Content) -> Response:
    """Send a message and stream its turn's events: SendMessage. The turn goes on if the caller
    leaves."""
    return await _stream(request, caller, "SendMessage", _with(asked, session_id=session_id))


@router.get("/sessions/{session_id}/turns/{turn}", responses=_answer("GetTurn"))
async def get_turn(caller: Caller, session_id: str, turn: int) -> dict[str, Any]:
    """Return what a turn was asked, and whether it runs: GetTurn."""
    return await _call(caller, "GetTurn", {"sessionId": session_id, "turn": turn})


@router.get("/sessions/{session_id}/turns/{turn}/events", responses=STREAMED)
async def watch_turn(
    request: Request, caller: Caller, session_id: str, turn: int, after_token_count: Number = 0
) -> Response:
    """Stream a turn's events from a position, running or ended: WatchTurn."""
    asked = {"sessionId": session_id, "turn": turn, "afterTokenCount": after_token_count}
    return await _stream(request, caller, "WatchTurn", asked)


@router.post("/sessions/{session_id}/turns/{turn}/cancel", responses=_answer("CancelTurn"))
async def cancel_turn(caller: Caller, session_id: str, turn: int) -> dict[str, Any]:
    """End a turn early. Its text so far stays: CancelTurn."""
    return await _call(caller, "CancelTurn", {"sessionId": session_id, "turn": turn})


@router.get("/sessions/{session_id}/traces", responses=_answer("GetTurnTraces"))
async def get_turn_traces(caller: Caller, session_id: str, turn_count: Number = 0) -> dict[str, Any]:
    """Return a session's last turns, round by round: GetTurnTraces."""
    return await _call(caller, "GetTurnTraces", {"sessionId": session_id, "turnCount": turn_count})


def _with(asked: Mapping[str, Any], session_id: str) -> dict[str, Any]:
    """Return a request with the session of its path. ApiError if the body names one too."""
    for name in ("session_id", "sessionId"):
        if name in asked:
            raise ApiError(400, f"{name} is in the path, and must not be in the body", param=name)
    return {**asked, "sessionId": session_id}


async def _call(caller: AsyncClient, method: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await caller.call_json(method, asked)
    except PeerError as error:
        raise contract_error(error) from error


async def _stream(request: Request, caller: AsyncClient, method: str, asked: Mapping[str, Any]) -> Response:
    """Return the response once the first event is there: until then a refusal has its own
    status."""
    events = caller.stream_json(method, asked)
    try:
        first = await unless_left(request, anext(events))
    except PeerError as error:
        raise contract_error(error) from error
    return EventStream(_events(first, events), lambda: None)


async def _events(first: dict[str, Any], rest: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[dict[str, Any]]:
    async with contextlib.aclosing(rest):
        yield first
        try:
            async for event in rest:
                yield event
        except PeerError as error:
            raise contract_error(error) from error
