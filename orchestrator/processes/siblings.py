"""Several orchestrator processes behind one port: calls about another process's session are passed on to it.

The kernel gives each connection to one of the processes, and a session stays in the one that opened it. A client that comes
back to its session over another connection may reach any of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

import grpc
from grpc_status import rpc_status

from orchestrator.errors import NotReadyError
from orchestrator.processes.pair import ServedPair
from orchestrator.processes.place import Place
from orchestrator.service import Context, OrchestratorService, page_of
from slipstream.errors import SlipstreamError
from slipstream.rpc.channel import open_channel
from slipstream.rpc.status import abort, abort_as
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc

Answer = TypeVar("Answer")

_OWN_TO_A_HOP = ("grpc-", "user-agent")


class Siblings:
    """The other processes."""

    def __init__(self, place: Place) -> None:
        self.place = place
        numbers = [number for number in range(place.count) if number != place.number]
        self._channels = {number: open_channel(place.address(number)) for number in numbers}
        self.stubs = {
            number: orchestrator_pb2_grpc.OrchestratorServiceStub(channel) for number, channel in self._channels.items()
        }

    def keeper_of(self, session_id: str) -> orchestrator_pb2_grpc.OrchestratorServiceAsyncStub | None:
        """The process to ask about a session; None: this one."""
        return self.stubs.get(self.place.owner(session_id))

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()


class SiblingService(OrchestratorService):
    """An OrchestratorService that knows only a share of the sessions, and who knows the others."""

    def __init__(self, pair: ServedPair, siblings: Siblings) -> None:
        super().__init__(pair)
        self._siblings = siblings

    async def Chat(
        self, request_iterator: AsyncIterator[orchestrator_pb2.ChatRequest], context: Context
    ) -> AsyncIterator[orchestrator_pb2.ChatResponse]:
        # A client that comes back to its session says so first: a stream's first command decides where it goes.
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        keeper = None if first is None else self._siblings.keeper_of(first.start.session_id)
        if keeper is None:
            async with aclosing(super().Chat(_again(first, requests), context)) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
            return
        call = keeper.Chat(_again(first, requests), **_passed_on(context))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await _refuse(context, error)
        finally:
            call.cancel()

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
        sessions = [self._session(record) for record in self._pair.store.recent_first()]
        if context.peer().startswith("unix:"):  # a sibling asks: for all, since pages would change while it turns them
            return orchestrator_pb2.ListSessionsResponse(sessions=sessions)
        for stub in self._siblings.stubs.values():
            try:
                sessions += (await stub.ListSessions(request, **_passed_on(context))).sessions
            except grpc.aio.AioRpcError as error:
                if not _is_away(error):  # one that is being started has no sessions
                    await abort_as(context, error)
        sessions.sort(key=lambda session: session.last_active_time.ToNanoseconds(), reverse=True)
        try:
            page, token = page_of([session.id for session in sessions], request)
        except SlipstreamError as error:
            await abort(context, error)
        return orchestrator_pb2.ListSessionsResponse(sessions=sessions[page], next_page_token=token)


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
