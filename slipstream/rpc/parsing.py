"""Requests that are no messages are refused as every bad request is, and answers that are none end
their call.

grpc parses before it calls a handler, and ends a call whose bytes are no message with UNKNOWN, the
parser's own words and a traceback in the log: nothing that a client's program could tell from our
fault. Of an answer that is none it makes None, with a traceback in the log.
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
"""What grpc says of a message that is."""


def unreadable(failure: grpc.aio.AioRpcError) -> str | None:
    """What a message would have to be that ended a `ParsedChannel`'s call; None if something else
    ended it."""
    details = failure.details() or ""
    if details == NO_MESSAGE or _TOO_LARGE in details:
        return f"must be a message of its kind, and no larger than may be: {details[:200]}"
    return None


class RefusesMalformed(grpc.aio.ServerInterceptor):
    """Stands between grpc and handlers: bytes that are no message end their call with
    INVALID_ARGUMENT."""

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


class ParsedChannel(grpc.aio.Channel):
    """Another channel, whose calls end with INTERNAL where what the server answers is no
    message."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *codecs: Any, **keywords: Any) -> Any:
        """As grpc.aio.Channel's; so are the others."""
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
    """A streaming call, up to the first answer that is none; all else is the call's own."""

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
    """A method's codecs as stubs give them, by place or by name, the second made safe."""
    codecs = (*codecs, None, None)[:2]
    serialize = keywords.pop("request_serializer", codecs[0])
    parse = keywords.pop("response_deserializer", codecs[1])
    return [serialize, None if parse is None else _parsing(parse)]


def _wellformed(response: Any) -> Any:
    if isinstance(response, _Malformed):
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, empty, empty, NO_MESSAGE)
    return response
