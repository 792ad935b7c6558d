"""Forwarding of calls to the orchestrator process that owns the session.

A connection ends in the process that the kernel or a load balancer chose. The store says which
process owns a session, and this interceptor sends the call there. A session that has no owner is
taken over by the process that was asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from orchestrator.access.access import Context
from orchestrator.errors import SessionMovedError, UnauthenticatedError
from orchestrator.processes.forwarded_call import ForwardedCall, Routing, Streaming, Unary
from orchestrator.processes.routing import ROUTES, WATCH_TURN, Route
from slipstream.rpc.status import abort, abort_as


class ForwardsCalls(grpc.aio.ServerInterceptor):
    """Answers a call in this process or forwards it to the session's owner, by the session that the
    request names. It has to be the innermost interceptor: it reads parsed requests."""

    def __init__(self) -> None:
        self._forwarder: _Forwarder | None = None

    def start(self, routing: Routing, watch_turn: Streaming) -> None:
        """Route calls from now on; called before the server starts. ``watch_turn`` is this
        process's own `WatchTurn`, which continues turns of processes that have ended."""
        self._forwarder = _Forwarder(routing, watch_turn)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the method's own handler, or one that forwards."""
        handler = await continuation(handler_call_details)
        route = ROUTES.get(handler_call_details.method)
        if handler is None or route is None:
            return handler
        forwarder = self._forwarder
        assert forwarder is not None, "start comes before the server's start"
        codecs = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(forwarder.unary(route, handler.unary_unary), *codecs)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(forwarder.conversation(route, handler.stream_stream), *codecs)
        if not route.is_turn:
            return grpc.unary_stream_rpc_method_handler(forwarder.streaming(route, handler.unary_stream), *codecs)
        return grpc.unary_stream_rpc_method_handler(forwarder.turn(route, handler.unary_stream), *codecs)


class _Forwarder:
    """Makes handlers that answer here or at the owner."""

    def __init__(self, routing: Routing, watch_turn: Streaming) -> None:
        self._routing = routing
        self._watch_turn = watch_turn

    def unary(self, route: Route, own: Unary) -> Unary:
        """Return a handler of one request and one response."""

        async def answer(request: Any, context: Context) -> Any:
            call = ForwardedCall(self._routing, route, context)
            while True:
                remote = await call.reach(request)
                try:
                    if remote is None:
                        return await own(request, context)
                    answering = remote.method("unary_unary")(request, **remote.options)
                    async with self._routing.replicas.while_alive(answering, remote.owner):
                        return await answering
                except SessionMovedError as error:
                    await call.pause_or_abort(error, request)
                except grpc.aio.AioRpcError as error:
                    await abort_as(context, error)

        return answer

    def streaming(self, route: Route, own: Streaming) -> Streaming:
        """Return a handler of one request and many responses. Once the first response is sent, the
        call ends with the process that answers it."""

        async def stream(request: Any, context: Context) -> AsyncGenerator[Any]:
            call, begun = ForwardedCall(self._routing, route, context), False
            while True:
                try:
                    async with aclosing(call.responses(own, request)) as responses:
                        async for response in responses:
                            begun = True
                            yield response
                    return
                except SessionMovedError as error:
                    if begun:
                        await abort(context, error)
                    await call.pause_or_abort(error, request)

        return stream

    def turn(self, route: Route, own: Streaming) -> Streaming:
        """Return a handler that streams one turn's events. When the owner ends, the next owner
        continues the turn, and its events follow from where they were."""

        async def stream(request: Any, context: Context) -> AsyncGenerator[Any]:
            call, answer, sent = ForwardedCall(self._routing, route, context), own, request.after_token_count
            begun = False
            while True:
                try:
                    async with aclosing(call.responses(answer, request)) as responses:
                        async for response in responses:
                            event = response.event
                            if begun and event.HasField("started"):
                                continue
                            yield response if call.route is route else route.response_class(event=event)
                            if event.HasField("delta"):
                                sent = event.delta.token_offset + len(event.delta.token_ids)
                            if not begun:
                                begun, session_id, turn = True, request.session_id, event.turn
                            call.renew_patience()
                    return
                except SessionMovedError as error:
                    if begun:
                        call.route, answer = WATCH_TURN, self._watch_turn
                        request = WATCH_TURN.request_class(session_id=session_id, turn=turn, after_token_count=sent)
                    await call.pause_or_abort(error, request)

        return stream

    def conversation(self, route: Route, own: Streaming) -> Streaming:
        """Return a handler of many requests and many responses. The first request decides where all
        of them go: a client that comes back to its session names it first."""

        async def converse(requests: AsyncIterator[Any], context: Context) -> AsyncGenerator[Any]:
            call = ForwardedCall(self._routing, route, context)
            stream: AsyncGenerator[Any]
            try:
                self._routing.access.principal_of(context)
            except UnauthenticatedError:  # the handler refuses in its own words, before it reads
                stream = own(requests, context)
            else:
                requests = aiter(requests)
                first = await anext(requests, None)
                stream = own(requests, context) if first is None else call.exchange(own, first, requests)
            try:
                async with aclosing(stream) as responses:
                    async for response in responses:
                        yield response
            except SessionMovedError as error:
                await abort(context, error)

        return converse
