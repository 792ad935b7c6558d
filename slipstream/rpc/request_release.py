"""Release of a request's memory as soon as its call ends in an error.

grpc keeps the exception that ends a call in a reference cycle with the call's context. It also
keeps the handler's frames, with up to sixteen megabytes of a refused request. The garbage collector
sees only a few hundred objects and runs late.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc

log = logging.getLogger(__name__)


class ReleasesRequests(grpc.aio.ServerInterceptor):
    """Interceptor that releases single requests early, and the traceback of an error."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the method's own handler, or one around it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        codecs = handler.request_deserializer, handler.response_serializer
        if inspect.iscoroutinefunction(handler.unary_unary):
            return grpc.unary_unary_rpc_method_handler(_answering(handler.unary_unary), *codecs)
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream), *codecs)
        return handler


def _answering(handle: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Any, context: Any) -> Any:
        answering = handle(request, context)
        del request
        try:
            return await answering
        except BaseException as error:
            raise _released(error) from None

    return answer


def _streaming(handle: Callable[[Any, Any], AsyncGenerator[Any]]) -> Callable[[Any, Any], AsyncGenerator[Any]]:
    async def stream(request: Any, context: Any) -> AsyncGenerator[Any]:
        responses = handle(request, context)
        del request
        try:
            async for response in responses:
                yield response
        except BaseException as error:
            raise _released(error) from None
        finally:
            await responses.aclose()

    return stream


def _released(error: BaseException) -> BaseException:
    """Return an error without its traceback and cause; unexpected errors are logged first."""
    if not isinstance(error, (grpc.aio.AbortError, asyncio.CancelledError, GeneratorExit)):
        log.error(
            "a call failed:\n%s", "".join(traceback.format_exception(error))
        )  # as text: a log record would keep the frames
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
