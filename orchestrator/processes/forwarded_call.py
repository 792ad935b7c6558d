"""One call that this process answers or forwards to the owner of its session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import grpc

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.errors import NotReadyError, SessionMovedError, UnauthenticatedError
from orchestrator.processes.replicas import ReplicaLostError, Replicas, call_options, is_forwarded
from orchestrator.processes.routing import Route
from orchestrator.sessions.durability.takeover import Takeover
from orchestrator.store.rows import OwnerRow
from slipstream.rpc.status import abort, abort_as

_PAUSE_SECONDS = 0.05
_PATIENCE_LEASES = 3.0
"""Leases that a call waits for an owner that cannot be reached. After one lease the owner is back,
or another process takes the session over."""

Unary = Callable[[Any, Context], Awaitable[Any]]
Streaming = Callable[[Any, Context], AsyncGenerator[Any]]


@dataclass(frozen=True, slots=True)
class Routing:
    """Parts that forwarding needs: the sessions' owners, the caller's identity, and channels."""

    directory: Takeover
    access: Access | OpenAccess
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class Remote:
    """The owner of a call's session, and how the call is forwarded there."""

    channel: grpc.aio.Channel
    owner: OwnerRow
    options: dict[str, Any]
    route: Route

    def method(self, kind: str) -> Callable[..., Any]:
        """Return the call of this ``kind``, such as ``unary_unary``."""
        route = self.route
        make = getattr(self.channel, kind)
        called: Callable[..., Any] = make(
            route.path,
            request_serializer=route.request_class.SerializeToString,
            response_deserializer=route.response_class.FromString,
        )
        return called


class ForwardedCall:
    """One call, from its arrival to its end, wherever it is answered."""

    def __init__(self, routing: Routing, route: Route, context: Context) -> None:
        self.route = route
        self._directory, self._access, self._replicas = routing.directory, routing.access, routing.replicas
        self._context = context
        self.renew_patience()

    def renew_patience(self) -> None:
        """Let the search for an owner take its whole time again."""
        self._patience = time.monotonic() + _PATIENCE_LEASES * self._replicas.ownership.lease_seconds

    async def reach(self, request: Any) -> Remote | None:
        """Return the process to ask; None if it is this one. End the call if no process can be
        reached."""
        ownership = self._replicas.ownership
        try:
            while (owner := await self._owner(request)) is not None:
                if is_forwarded(self._context):
                    raise SessionMovedError("another process owns the session by now")
                channel = await self._replicas.connect(owner.address)
                if channel is not None:
                    options = call_options(self._context, self._access, owner.address)
                    return Remote(channel, owner, options, self.route)
                if time.monotonic() > self._patience:
                    raise NotReadyError(f"the process that owns this session cannot be reached{_advice(owner.address)}")
                with suppress(TimeoutError):  # no process looks while the store is away
                    async with asyncio.timeout(ownership.lease_seconds):
                        await ownership.look_again()
        except Exception as error:
            await abort(self._context, error)
        return None

    async def _owner(self, request: Any) -> OwnerRow | None:
        return await self.route.owner(request, self._access.principal_of(self._context), self._directory)

    async def pause_or_abort(self, error: SessionMovedError, request: Any) -> None:
        """Wait a moment before the owner is looked for again, or end the call.

        The call ends if the search has taken too long, if the process that forwarded the call
        searches itself, or if a second attempt could do what was asked a second time.
        """
        repeats = isinstance(error, ReplicaLostError) and self.route.happens_twice(request)
        if repeats or is_forwarded(self._context) or time.monotonic() > self._patience:
            await abort(self._context, error)
        await asyncio.sleep(_PAUSE_SECONDS)

    async def responses(self, own: Streaming, request: Any) -> AsyncGenerator[Any]:
        """Yield the owner's responses to one request. SessionMovedError if the owner changes."""
        remote = await self.reach(request)
        if remote is None:
            stream = own(request, self._context)
        else:
            stream = self._forwarded(remote, remote.method("unary_stream")(request, **remote.options))
        async with aclosing(stream) as responses:
            async for response in responses:
                yield response

    async def exchange(self, own: Streaming, first: Any, rest: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        """Yield the owner's responses to a stream of requests. SessionMovedError if the owner
        changes."""
        remote = await self.reach(first)
        requests = _Authenticated(first, rest, lambda: self._access.principal_of(self._context))
        if remote is None:
            stream = own(requests.all(), self._context)
        else:
            stream = self._forwarded(remote, remote.method("stream_stream")(requests.allowed(), **remote.options))
        async with aclosing(stream) as responses:
            async for response in responses:
                yield response
        if requests.refused is not None:
            await abort(self._context, requests.refused)

    async def _forwarded(self, remote: Remote, call: Any) -> AsyncGenerator[Any]:
        try:
            async with self._replicas.while_alive(call, remote.owner):
                async for response in call:
                    yield response
        except grpc.aio.AioRpcError as error:
            await abort_as(self._context, error)
        finally:
            call.cancel()


class _Authenticated:
    """A stream's requests for as long as the caller's token is valid. The owner checks only the
    proof that the call brings at its beginning."""

    def __init__(self, first: Any, rest: AsyncIterator[Any], check: Callable[[], object]) -> None:
        self.refused: UnauthenticatedError | None = None
        self._first = first
        self._rest = rest
        self._check = check

    async def all(self) -> AsyncGenerator[Any]:
        """Yield every request."""
        yield self._first
        async for request in self._rest:
            yield request

    async def allowed(self) -> AsyncGenerator[Any]:
        """Yield the requests up to the first that comes with an invalid token; set ``refused``."""
        async for request in self.all():
            try:
                self._check()
            except UnauthenticatedError as error:
                self.refused = error
                return
            yield request


def _advice(address: str) -> str:
    if address.startswith("unix:"):
        return ": if it runs on another machine, it has to be started with --advertise"
    return ""
