"""Handling of bytes that are not a valid message, in requests and in answers.

grpc parses a request before it calls the handler. If that fails, grpc ends the call with UNKNOWN
and logs a traceback, which looks like a fault of the server. If an answer cannot be parsed, grpc
returns None and logs a traceback. Here both get a proper error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.rpc.status import abort

NO_MESSAGE = "what the server answered is no message"


_TOO_LARGE = "larger than max"
"""Part of grpc's text about a message that is too large."""


def unreadable(failure: grpc.aio.AioRpcError) -> str | None:
    """Return the requirement that a message broke and so ended a `ParsedChannel`'s call. None if
    something else ended the call."""
    details = failure.details() or ""
    if details == NO_MESSAGE or _TOO_LARGE in details:
        return f"must be a valid message within the size limit: {details[:200]}"
    return None


class RefusesMalformed(grpc.aio.ServerInterceptor):
    """Interceptor that ends a call with INVALID_ARGUMENT if its bytes are not a valid message."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the method's own handler, or one around it."""
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
    """Placeholder of a message that could not be parsed."""

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
        del request  # it may be large, and the answer may take long
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
        except (
            Exception,
            asyncio.CancelledError,
        ):  # any error: the handler, or a forwarded call, saw a malformed request
            if wellformed.error is not None:
                await abort(context, wellformed.error)
            raise
        finally:
            await responses.aclose()

    return converse


class _Wellformed:
    """Requests of a stream up to the first malformed one, which sets ``error`` and raises it."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None
        self.error: InvalidFieldsError | None = None

    def __aiter__(self) -> _Wellformed:
        return self

    async def __anext__(self) -> Any:
        if self._next is None:  # not earlier: grpc warns of a generator that is never iterated
            self._next = aiter(self._requests).__anext__
        request = await self._next()
        if isinstance(request, _Malformed):
            self.error = request.error
            raise self.error
        return request


class ParsedChannel(grpc.aio.Channel):
    """Wrapper of a channel whose calls end with INTERNAL if an answer is not a valid message."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *codecs: Any, **keywords: Any) -> Any:
        """Return a call of one request and one response, as grpc.aio.Channel does."""
        asking = self._channel.unary_unary(method, *_answers_parsed(codecs, keywords), **keywords)

        async def call(*asked: Any, **how: Any) -> Any:
            return _wellformed(await asking(*asked, **how))

        return call

    def unary_stream(self, method: str, *codecs: Any, **keywords: Any) -> Any:  # noqa: D102
        asking = self._channel.unary_stream(method, *_answers_parsed(codecs, keywords), **keywords)
        return lambda *asked, **how: _WellformedAnswers(asking(*asked, **how))

    def stream_unary(self, *arguments: Any, **keywords: Any) -> NoReturn:  # noqa: D102
        raise NotImplementedError("no service has such a method")

    def stream_stream(self, method: str, *codecs: Any, **keywords: Any) -> Any:  # noqa: D102
        asking = self._channel.stream_stream(method, *_answers_parsed(codecs, keywords), **keywords)
        return lambda *asked, **how: _WellformedAnswers(asking(*asked, **how))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: D102
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:  # noqa: D102
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:  # noqa: D102
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:  # noqa: D102
        await self._channel.close(grace)

    async def __aenter__(self) -> ParsedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _WellformedAnswers:
    """Wrapper of a streaming call that ends at the first malformed answer."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for response in self._call:
            if isinstance(response, _Malformed):
                self._call.cancel()
            yield _wellformed(response)


def _answers_parsed(codecs: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """Return a method's serializer and a safe deserializer, given by position or by keyword."""
    codecs = (*codecs, None, None)[:2]
    serialize = keywords.pop("request_serializer", codecs[0])
    parse = keywords.pop("response_deserializer", codecs[1])
    return [serialize, None if parse is None else _parsing(parse)]


def _wellformed(response: Any) -> Any:
    if isinstance(response, _Malformed):
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, empty, empty, NO_MESSAGE)
    return response
