"""Several orchestrator processes behind one port: calls about another process's session are passed on to it.

The kernel gives each connection to one of the processes, and a session stays in the one that opened it. A client that comes
back to its session over another connection may reach any of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NoReturn, TypeVar

import grpc
from grpc_status import rpc_status

from orchestrator.contract.commands import page_size_of, page_token
from orchestrator.contract.service import Context, OrchestratorService, PeersView
from orchestrator.errors import NotReadyError
from orchestrator.processes.claims import Claims
from orchestrator.processes.place import Place
from orchestrator.sessions.sessions import Sessions
from orchestrator.watching.watching import Watching
from slipstream.rpc.channel import open_channel
from slipstream.rpc.status import abort, abort_as
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, session_pb2

Answer = TypeVar("Answer")
ResponseT = TypeVar("ResponseT")

_OWN_TO_A_HOP = ("grpc-", "user-agent")


class Siblings:
    """The other processes."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._claims = Claims(place.directory, place.number)
        numbers = [number for number in range(place.count) if number != place.number]
        self._channels = {number: open_channel(place.address(number)) for number in numbers}
        self.stubs = {
            number: orchestrator_pb2_grpc.OrchestratorServiceStub(channel) for number, channel in self._channels.items()
        }

    def keeper_of(self, session_id: str) -> orchestrator_pb2_grpc.OrchestratorServiceAsyncStub | None:
        """The process to ask about a session; None: this one."""
        return self.stubs.get(self.place.owner(session_id))

    def keeper_of_request(self, request_id: str) -> orchestrator_pb2_grpc.OrchestratorServiceAsyncStub | None:
        """The process that was first asked for what is created under a name; None: this one."""
        return self.stubs.get(self._claims.claim(request_id))

    def keeper_of_chat(
        self, first: orchestrator_pb2.ChatRequest
    ) -> orchestrator_pb2_grpc.OrchestratorServiceAsyncStub | None:
        """The process for a chat that begins so; None: this one."""
        if first.start.HasField("session_id"):
            return self.keeper_of(first.start.session_id)
        return self.keeper_of_request(first.request_id)

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()


class SiblingService(OrchestratorService):
    """An OrchestratorService that knows only a share of the sessions, and who knows the others."""

    def __init__(self, sessions: Sessions, watching: Watching, peers: PeersView, siblings: Siblings) -> None:
        super().__init__(sessions, watching, peers, siblings.place.number)
        self._siblings = siblings

    async def Generate(
        self, request: orchestrator_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        keeper = self._siblings.keeper_of_request(request.request_id)
        async with _passed(keeper, "Generate", super().Generate, request, context) as responses:
            async for response in responses:
                yield response

    async def CreateSession(
        self, request: orchestrator_pb2.CreateSessionRequest, context: Context
    ) -> orchestrator_pb2.CreateSessionResponse:
        keeper = self._siblings.keeper_of_request(request.request_id)
        if keeper is None:
            return await super().CreateSession(request, context)
        return await _answer(keeper.CreateSession(request, **_passed_on(context)), context)

    async def SendMessage(
        self, request: orchestrator_pb2.SendMessageRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.SendMessageResponse]:
        keeper = self._siblings.keeper_of(request.session_id)
        async with _passed(keeper, "SendMessage", super().SendMessage, request, context) as responses:
            async for response in responses:
                yield response

    async def WatchTurn(
        self, request: orchestrator_pb2.WatchTurnRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.WatchTurnResponse]:
        keeper = self._siblings.keeper_of(request.session_id)
        async with _passed(keeper, "WatchTurn", super().WatchTurn, request, context) as responses:
            async for response in responses:
                yield response

    async def CancelTurn(
        self, request: orchestrator_pb2.CancelTurnRequest, context: Context
    ) -> orchestrator_pb2.CancelTurnResponse:
        keeper = self._siblings.keeper_of(request.session_id)
        if keeper is None:
            return await super().CancelTurn(request, context)
        return await _answer(keeper.CancelTurn(request, **_passed_on(context)), context)

    async def Chat(
        self, request_iterator: AsyncIterator[orchestrator_pb2.ChatRequest], context: Context
    ) -> AsyncIterator[orchestrator_pb2.ChatResponse]:
        # A client that comes back to its session says so first: a stream's first command decides where it goes.
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        keeper = None if first is None else self._siblings.keeper_of_chat(first)
        async with _passed(keeper, "Chat", super().Chat, _again(first, requests), context) as responses:
            async for response in responses:
                yield response

    async def GetSession(
        self, request: orchestrator_pb2.GetSessionRequest, context: Context
    ) -> orchestrator_pb2.GetSessionResponse:
        keeper = self._siblings.keeper_of(request.session_id)
        if keeper is None:
            return await super().GetSession(request, context)
        return await _answer(keeper.GetSession(request, **_passed_on(context)), context)

    async def DeleteSession(
        self, request: orchestrator_pb2.DeleteSessionRequest, context: Context
    ) -> orchestrator_pb2.DeleteSessionResponse:
        keeper = self._siblings.keeper_of(request.session_id)
        if keeper is None:
            return await super().DeleteSession(request, context)
        return await _answer(keeper.DeleteSession(request, **_passed_on(context)), context)

    async def ListSessions(
        self, request: orchestrator_pb2.ListSessionsRequest, context: Context
    ) -> orchestrator_pb2.ListSessionsResponse:
        own = await super().ListSessions(request, context)
        pages = [own, *await self._of_others("ListSessions", request, context)]
        return own if len(pages) == 1 else _merged(pages, page_size_of(request))

    async def GetTurnTraces(
        self, request: orchestrator_pb2.GetTurnTracesRequest, context: Context
    ) -> orchestrator_pb2.GetTurnTracesResponse:
        keeper = self._siblings.keeper_of(request.session_id)
        if keeper is None:
            return await super().GetTurnTraces(request, context)
        return await _answer(keeper.GetTurnTraces(request, **_passed_on(context)), context)

    async def GetStatus(
        self, request: orchestrator_pb2.GetStatusRequest, context: Context
    ) -> orchestrator_pb2.GetStatusResponse:
        answers = [await super().GetStatus(request, context), *await self._of_others("GetStatus", request, context)]
        processes = [process for answer in answers for process in answer.processes]
        return orchestrator_pb2.GetStatusResponse(processes=sorted(processes, key=lambda process: process.number))

    async def _of_others(self, name: str, request: Any, context: Context) -> list[Any]:
        """What the other processes answer; nothing if it is one of them that asks, or of one that is being started."""
        if context.peer().startswith("unix:"):
            return []
        answers = []
        for stub in self._siblings.stubs.values():
            try:
                answers.append(await getattr(stub, name)(request, **_passed_on(context)))
            except grpc.aio.AioRpcError as error:
                if not _is_away(error):
                    await abort_as(context, error)
        return answers


def _merged(pages: list[orchestrator_pb2.ListSessionsResponse], size: int) -> orchestrator_pb2.ListSessionsResponse:
    """One page of all sessions from a page of each process's, all from the same cursor."""
    sessions = [session for page in pages for session in page.sessions]
    sessions.sort(key=_cursor, reverse=True)
    more = len(sessions) > size or any(page.next_page_token for page in pages)
    return orchestrator_pb2.ListSessionsResponse(
        sessions=sessions[:size], next_page_token=page_token(_cursor(sessions[size - 1])) if more else ""
    )


def _cursor(session: session_pb2.Session) -> tuple[int, str]:
    return session.create_time.ToMicroseconds(), session.id


@asynccontextmanager
async def _passed(
    keeper: orchestrator_pb2_grpc.OrchestratorServiceAsyncStub | None,
    name: str,
    own: Callable[[Any, Context], AsyncIterator[ResponseT]],
    request: Any,
    context: Context,
) -> AsyncIterator[AsyncIterator[ResponseT]]:
    """The responses of a streaming call, from this process or from the one that keeps what it is about."""
    if keeper is None:
        async with aclosing(own(request, context)) as responses:  # type: ignore[type-var]
            yield responses
        return
    call = getattr(keeper, name)(request, **_passed_on(context))
    try:
        yield call
    except grpc.aio.AioRpcError as error:
        await _refuse(context, error)
    finally:
        call.cancel()


async def _again(
    first: orchestrator_pb2.ChatRequest | None, rest: AsyncIterator[orchestrator_pb2.ChatRequest]
) -> AsyncIterator[orchestrator_pb2.ChatRequest]:
    if first is not None:
        yield first
        async for request in rest:
            yield request


async def _answer(call: Awaitable[Answer], context: Context) -> Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        await _refuse(context, error)


async def _refuse(context: Context, error: grpc.aio.AioRpcError) -> NoReturn:
    """End a call the way it ended where it was passed on to."""
    if _is_away(error):
        await abort(
            context, NotReadyError("the process that kept this session is being started again; its sessions are gone")
        )
    await abort_as(context, error)


def _is_away(error: grpc.aio.AioRpcError) -> bool:
    """Whether there was no process to answer. What a process refuses has details."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and rpc_status.from_call(error) is None  # type: ignore[arg-type]


def _passed_on(context: Context) -> dict[str, Any]:
    """What a call that is passed on takes along: its trace and the time that its client gives it."""
    metadata = [pair for pair in context.invocation_metadata() or () if not pair[0].startswith(_OWN_TO_A_HOP)]
    return {"metadata": metadata, "timeout": context.time_remaining()}
