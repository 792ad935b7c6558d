"""Requests that are no messages are refused as every bad request is.

grpc parses before it calls a handler, and ends a call whose bytes are no message with UNKNOWN, the parser's own words and a
traceback in the log: nothing that a client's program could tell from our fault.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.rpc.status import abort


class RefusesMalformed(grpc.aio.ServerInterceptor):
    """Stands between grpc and handlers: bytes that are no message end their call with INVALID_ARGUMENT."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The same handler, or one around it."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        codecs = _parsing(handler.request_deserializer), handler.response_serializer
        if inspect.iscoroutinefunction(handler.unary_unary):
            return grpc.unary_unary_rpc_method_handler(_answering(handler.unary_unary), *codecs)
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream), *codecs)
        if inspect.isasyncgenfunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(_conversing(handler.stream_stream), *codecs)
        return handler


class _Malformed:
    """In place of a message that could not be parsed."""

    def __init__(self, reason: str) -> None:
        self.error = InvalidFieldsError([FieldViolation("request", f"must be a message of its kind: {reason}")])


def _parsing(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def message(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return message


def _answering(handle: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            await abort(context, request.error)
        answering = handle(request, context)
        del request  # it may be large, and the answer long in coming
        return await answering

    return answer


def _streaming(handle: Callable[[Any, Any], AsyncGenerator[Any]]) -> Callable[[Any, Any], AsyncGenerator[Any]]:
    async def stream(request: Any, context: Any) -> AsyncGenerator[Any]:
        if isinstance(request, _Malformed):
            await abort(context, request.error)
        responses = handle(request, context)
        del request
        try:
            async for response in responses:
                yield response
        finally:
            await responses.aclose()

    return stream


def _conversing(handle: Callable[[Any, Any], AsyncGenerator[Any]]) -> Callable[[Any, Any], AsyncGenerator[Any]]:
    async def converse(requests: AsyncIterator[Any], context: Any) -> AsyncGenerator[Any]:
        wellformed = _Wellformed(requests)
        responses = handle(wellformed, context)
        try:
            async for response in responses:
                yield response
        except (Exception, asyncio.CancelledError):  # whatever the handler, or a call it passed them on to, made of it
            if wellformed.error is not None:
                await abort(context, wellformed.error)
            raise
        finally:
            await responses.aclose()

    return converse


class _Wellformed:
    """A stream's requests, up to the first that is none; that is ``error``, and raised."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None
        self.error: InvalidFieldsError | None = None

    def __aiter__(self) -> _Wellformed:
        return self

    async def __anext__(self) -> Any:
        if self._next is None:  # not before: grpc warns of a generator that is made and never asked
            self._next = aiter(self._requests).__anext__
        request = await self._next()
        if isinstance(request, _Malformed):
            self.error = request.error
            raise self.error
        return request
