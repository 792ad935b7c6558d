"""Several orchestrator processes look like one: a call about a session that another process keeps
is passed on to it.

A connection ends in whichever process the kernel or a load balancer chose. The store says who keeps
what; what is nobody's is this process's from then on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
from grpc_status import rpc_status

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.access.vouching import VOUCHING_METADATA
from orchestrator.contract.service import OrchestratorService, PeersView
from orchestrator.errors import NotReadyError, SessionMovedError, UnauthenticatedError
from orchestrator.processes.place import Place
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import OwnerRow
from orchestrator.watching.watching import Watching
from slipstream.rpc.reaching import Reaching
from slipstream.rpc.refusals import tell_refusal
from slipstream.rpc.status import abort, abort_as, error_of_call, status_of
from slipstream.transport.addresses import PlaintextError
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, turn_pb2

AnswerT = TypeVar("AnswerT")
ResponseT = TypeVar("ResponseT")
Stub: TypeAlias = "orchestrator_pb2_grpc.OrchestratorServiceAsyncStub"
Locate = Callable[[], Awaitable[OwnerRow | None]]

_PASSED_ON = "slipstream-passed-on"
"""In the metadata of a call that another process has passed on: it goes no further."""

_OWN_TO_A_HOP = ("grpc-", "user-agent", _PASSED_ON, *VOUCHING_METADATA)
_MOST_CHANNELS = 64
_CONNECT_SECONDS, _PAUSE_SECONDS = 1.0, 0.05
_PATIENCE_LEASES = 3.0
"""How long a process that keeps a session and cannot be reached is waited for: after a lease it is
back, or taken for dead."""


class _LostError(SessionMovedError):
    """The process that was asked has ended, and what was asked may have happened."""


class Others:
    """Channels to the other processes."""

    def __init__(self, ownership: Ownership, place: Place | None, reaching: Reaching) -> None:
        self.ownership = ownership
        self._place = place
        self._reaching = reaching
        self._channels: dict[str, grpc.aio.Channel] = {}

    def sibling(self, address: str) -> str | None:
        """Where a process that shares this one's port listens for the others; None if that at an
        address is none of them."""
        return None if self._place is None else self._place.nearer(address)

    async def ready(self, address: str) -> Stub | None:
        """Another process to ask; None if it cannot be reached."""
        address = self.sibling(address) or address
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
            if len(self._channels) > _MOST_CHANNELS:
                await self._channels.pop(next(iter(self._channels))).close()
        try:
            await asyncio.wait_for(channel.channel_ready(), _CONNECT_SECONDS)
        except TimeoutError:
            return None
        return orchestrator_pb2_grpc.OrchestratorServiceStub(channel)

    def _open(self, address: str) -> grpc.aio.Channel:
        try:
            return self._reaching.orchestrator(address)
        except PlaintextError as error:  # it is ours to mend, not the client's
            raise NotReadyError(f"the process that keeps this session cannot be reached: {error}") from error

    async def siblings(self) -> dict[str, Stub]:
        """Those that share this one's port, by their addresses, as far as they can be reached."""
        if self._place is None:
            return {}
        addresses = [self._place.address(number) for number in range(self._place.count) if number != self._place.number]
        found = await asyncio.gather(*map(self.ready, addresses))
        return {address: stub for address, stub in zip(addresses, found, strict=True) if stub is not None}

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()


class PassingService(OrchestratorService):
    """An OrchestratorService that keeps a share of the sessions, and asks whoever keeps the
    others."""

    def __init__(
        self,
        sessions: Sessions,
        watching: Watching,
        peers: PeersView,
        access: Access | OpenAccess,
        others: Others,
        number: int = 0,
    ) -> None:
        super().__init__(sessions, watching, peers, access, number)
        self._others = others

    async def Generate(
        self, request: orchestrator_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        locate = self._request(request, context, listed=False)
        async for response in self._stream(super().Generate, locate, request, context):
            yield response

    async def CreateSession(
        self, request: orchestrator_pb2.CreateSessionRequest, context: Context
    ) -> orchestrator_pb2.CreateSessionResponse:
        locate = self._request(request, context, listed=True)
        return await self._answer(super().CreateSession, locate, request, context)

    async def SendMessage(
        self, request: orchestrator_pb2.SendMessageRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.SendMessageResponse]:
        async for event in self._turn(super().SendMessage, request, context):
            yield orchestrator_pb2.SendMessageResponse(event=event)

    async def WatchTurn(
        self, request: orchestrator_pb2.WatchTurnRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.WatchTurnResponse]:
        async for event in self._turn(super().WatchTurn, request, context):
            yield orchestrator_pb2.WatchTurnResponse(event=event)

    async def CancelTurn(
        self, request: orchestrator_pb2.CancelTurnRequest, context: Context
    ) -> orchestrator_pb2.CancelTurnResponse:
        return await self._answer(super().CancelTurn, self._session(request, context), request, context)

    async def Chat(
        self, request_iterator: AsyncIterator[orchestrator_pb2.ChatRequest], context: Context
    ) -> AsyncIterator[orchestrator_pb2.ChatResponse]:
        # A client that comes back to its session says so first: a stream's first command decides
        # where it goes.
        try:
            self._access.principal_of(context)
        except UnauthenticatedError as error:  # in the stream: its status would be lost while its client is writing
            tell_refusal(error)
            yield orchestrator_pb2.ChatResponse(failed=orchestrator_pb2.CommandFailed(error=status_of(error)))
            return
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        locate = _nowhere if first is None else self._chat(first, context)
        async for response in self._stream(super().Chat, locate, _again(first, requests), context, once=True):
            yield response

    async def GetSession(
        self, request: orchestrator_pb2.GetSessionRequest, context: Context
    ) -> orchestrator_pb2.GetSessionResponse:
        return await self._answer(super().GetSession, self._session(request, context), request, context)

    async def ForkSession(
        self, request: orchestrator_pb2.ForkSessionRequest, context: Context
    ) -> orchestrator_pb2.ForkSessionResponse:
        def locate() -> Awaitable[OwnerRow | None]:
            caller = self._access.principal_of(context)
            return self._sessions.elsewhere.locate_fork(request.session_id, request.request_id, caller.name)

        return await self._answer(super().ForkSession, locate, request, context)

    async def ExportSession(
        self, request: orchestrator_pb2.ExportSessionRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.ExportSessionResponse]:
        locate = self._session(request, context)
        async for response in self._stream(super().ExportSession, locate, request, context):
            yield response

    async def DeleteSession(
        self, request: orchestrator_pb2.DeleteSessionRequest, context: Context
    ) -> orchestrator_pb2.DeleteSessionResponse:
        return await self._answer(super().DeleteSession, self._session(request, context), request, context)

    async def GetTurnTraces(
        self, request: orchestrator_pb2.GetTurnTracesRequest, context: Context
    ) -> orchestrator_pb2.GetTurnTracesResponse:
        def locate() -> Awaitable[OwnerRow | None]:
            caller = self._access.principal_of(context)
            return self._sessions.elsewhere.locate(request.session_id, None if caller.operator else caller.name)

        return await self._answer(super().GetTurnTraces, locate, request, context)

    async def GetStatus(
        self, request: orchestrator_pb2.GetStatusRequest, context: Context
    ) -> orchestrator_pb2.GetStatusResponse:
        answers = [await super().GetStatus(request, context)]
        siblings = {} if _is_passed_on(context) else await self._others.siblings()
        for address, stub in siblings.items():
            try:
                answers.append(await stub.GetStatus(request, **self._passed_on(context, to=address)))
            except UnauthenticatedError as error:  # its token has ended meanwhile
                await abort(context, error)
            except grpc.aio.AioRpcError as error:
                if not _is_away(error):
                    await abort_as(context, error)
        processes = [process for answer in answers for process in answer.processes]
        return orchestrator_pb2.GetStatusResponse(processes=sorted(processes, key=lambda process: process.number))

    def _session(self, request: Any, context: Context) -> Locate:
        def locate() -> Awaitable[OwnerRow | None]:
            return self._sessions.elsewhere.locate(request.session_id, self._access.principal_of(context).name)

        return locate

    def _request(self, request: Any, context: Context, *, listed: bool) -> Locate:
        def locate() -> Awaitable[OwnerRow | None]:
            principal = self._access.principal_of(context).name
            return self._sessions.elsewhere.locate_request(request.request_id, principal, listed=listed)

        return locate

    def _chat(self, first: orchestrator_pb2.ChatRequest, context: Context) -> Locate:
        if first.start.HasField("session_id"):
            return self._session(first.start, context)
        return self._request(first, context, listed=True)

    def _passed_on(self, context: Context, *, to: str) -> dict[str, Any]:
        """Return what a call takes along that is passed on to the process at this address: on whose
        behalf it is, its trace, and its client's time."""
        metadata = [pair for pair in context.invocation_metadata() or () if not pair[0].startswith(_OWN_TO_A_HOP)]
        on_behalf = self._access.on_behalf(context, to)
        return {"metadata": [*metadata, (_PASSED_ON, "1"), *on_behalf], "timeout": context.time_remaining()}

    async def _reach(self, locate: Locate, context: Context) -> tuple[Stub, OwnerRow, dict[str, Any]] | None:
        """The process to ask, and what the call takes along; None: this one. Ends the call if there
        is none to be had."""
        patience = self._patience()
        try:
            while (owner := await locate()) is not None:
                if _is_passed_on(context):
                    raise SessionMovedError("the session is kept by another process by now")
                stub = await self._others.ready(owner.address)
                if stub is not None:
                    return stub, owner, self._passed_on(context, to=owner.address)
                if time.monotonic() > patience:
                    raise NotReadyError(f"the process that keeps this session cannot be reached{_why(owner.address)}")
                with suppress(TimeoutError):  # nobody looks while the store is away
                    async with asyncio.timeout(self._others.ownership.lease_seconds):
                        await self._others.ownership.look_again()
        except Exception as error:
            await abort(context, error)
        return None

    async def _answer(
        self, own: Callable[[Any, Context], Awaitable[AnswerT]], locate: Locate, request: Any, context: Context
    ) -> AnswerT:
        patience = self._patience()
        while True:
            reached = await self._reach(locate, context)
            try:
                if reached is None:
                    return await own(request, context)
                stub, owner, along = reached
                answer: Awaitable[AnswerT] = getattr(stub, own.__name__)(request, **along)
                async with self._while_it_lives(answer, owner):
                    return await answer
            except SessionMovedError as error:
                await self._go_on_or_end(error, request, patience, context)
            except grpc.aio.AioRpcError as error:
                await abort_as(context, error)

    async def _stream(
        self,
        own: Callable[[Any, Context], AsyncIterator[ResponseT]],
        locate: Locate,
        request: Any,
        context: Context,
        *,
        once: bool = False,
    ) -> AsyncIterator[ResponseT]:
        """The responses of one call. Once the first is there it ends with the process that gives
        them; with ``once`` already where that has been asked."""
        begun, patience = once, self._patience()
        while True:
            try:
                async for response in self._once(own, locate, request, context):
                    begun = True
                    yield response
                return
            except SessionMovedError as error:
                if begun:
                    await abort(context, error)
                await self._go_on_or_end(error, request, patience, context)

    async def _turn(
        self,
        own: Callable[[Any, Context], AsyncIterator[Any]],
        request: orchestrator_pb2.SendMessageRequest | orchestrator_pb2.WatchTurnRequest,
        context: Context,
    ) -> AsyncIterator[turn_pb2.TurnEvent]:
        """The events of one turn; if its process ends, from where they were, by the one that goes
        on with it."""
        locate, begun, patience = self._session(request, context), False, self._patience()
        while True:
            try:
                async for response in self._once(own, locate, request, context):
                    event = response.event
                    if begun and event.HasField("started"):
                        continue
                    yield event
                    begun, own, patience = True, super().WatchTurn, self._patience()
                    told = request.after_token_count
                    if event.HasField("delta"):
                        told = event.delta.token_offset + len(event.delta.token_ids)
                    request = orchestrator_pb2.WatchTurnRequest(
                        session_id=request.session_id, turn=event.turn, after_token_count=told
                    )
                return
            except SessionMovedError as error:
                await self._go_on_or_end(error, request, patience, context)

    def _patience(self) -> float:
        """Until when a session is looked for."""
        return time.monotonic() + _PATIENCE_LEASES * self._others.ownership.lease_seconds

    async def _go_on_or_end(self, error: SessionMovedError, request: Any, patience: float, context: Context) -> None:
        """Look for the session anew, unless that has taken too long, whoever passed the call on
        does so, or what was asked may have happened already and has no name by which it would be
        known."""
        happens_twice = isinstance(error, _LostError) and getattr(request, "request_id", "named") == ""
        if happens_twice or _is_passed_on(context) or time.monotonic() > patience:
            await abort(context, error)
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _once(
        self, own: Callable[[Any, Context], AsyncIterator[ResponseT]], locate: Locate, request: Any, context: Context
    ) -> AsyncIterator[ResponseT]:
        """The responses of whoever keeps the session. SessionMovedError where that changes."""
        reached = await self._reach(locate, context)
        if reached is None:
            async with aclosing(own(request, context)) as responses:  # type: ignore[type-var]
                async for response in responses:
                    yield response
            return
        stub, owner, along = reached
        vouched = (
            _Vouched(request, partial(self._access.principal_of, context)) if hasattr(request, "__aiter__") else None
        )
        call = getattr(stub, own.__name__)(request if vouched is None else vouched.requests(), **along)
        try:
            async with self._while_it_lives(call, owner):
                async for response in call:
                    yield response
            if vouched is not None and vouched.refused is not None:
                await abort(context, vouched.refused)
        except grpc.aio.AioRpcError as error:
            await abort_as(context, error)
        finally:
            call.cancel()

    @asynccontextmanager
    async def _while_it_lives(self, call: Any, owner: OwnerRow) -> AsyncIterator[None]:
        """Gives up a call with the process that answers it. SessionMovedError if that ends, or has
        the session no more."""

        async def give_up() -> None:
            await self._others.ownership.until_gone(owner.id)
            call.cancel()

        watching = asyncio.create_task(give_up())
        try:
            yield
        except asyncio.CancelledError:
            if not watching.done():
                raise
            raise _LostError("the process that kept this session is gone") from None
        except grpc.aio.AioRpcError as error:
            if _is_away(error):
                raise _LostError("the process that kept this session is away") from error
            if error_of_call(error).reason == SessionMovedError.reason:
                raise SessionMovedError("another process keeps this session by now") from error
            raise
        finally:
            watching.cancel()


class _Vouched:
    """A stream's requests for as long as its token counts: the other process asks for it at the
    beginning only."""

    def __init__(self, requests: AsyncIterator[Any], check: Callable[[], object]) -> None:
        self.refused: UnauthenticatedError | None = None
        self._requests = requests
        self._check = check

    async def requests(self) -> AsyncIterator[Any]:
        """Up to the first that nobody vouches for."""
        async for request in self._requests:
            try:
                self._check()
            except UnauthenticatedError as error:
                self.refused = error
                return
            yield request


async def _nowhere() -> None:
    return None


async def _again(
    first: orchestrator_pb2.ChatRequest | None, rest: AsyncIterator[orchestrator_pb2.ChatRequest]
) -> AsyncIterator[orchestrator_pb2.ChatRequest]:
    if first is not None:
        yield first
        async for request in rest:
            yield request


def _is_away(error: grpc.aio.AioRpcError) -> bool:
    """Whether there was no process to answer. What a process refuses has details."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and rpc_status.from_call(error) is None  # type: ignore[arg-type]


def _why(address: str) -> str:
    if address.startswith("unix:"):
        return ": if it runs on another machine, it has to be started with --advertise"
    return ""


def _is_passed_on(context: Context) -> bool:
    return any(key == _PASSED_ON for key, _ in context.invocation_metadata() or ())
