"""Revocation: a stream ends soon after its caller's token is withdrawn or expires."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from orchestrator.access.access import Access, Context
from orchestrator.errors import UnauthenticatedError
from slipstream.errors import SlipstreamError
from slipstream.rpc.status import abort

LastWords = Callable[[SlipstreamError], Any]
"""A function that makes the last response of a stream whose client reads errors from responses."""

_LOOK_SECONDS = 1.0
"""Seconds between two checks of a caller's token. The access file itself is read once a second, so
a stream ends within two."""


@dataclass(slots=True, eq=False)
class _Call:
    """A stream, and the task that answers it."""

    context: Context
    name: str
    task: asyncio.Task[Any]
    is_waiting: bool = False
    """True while the task waits for the handler's next response. Otherwise grpc holds the task, and
    it must not be cancelled."""
    error: UnauthenticatedError | None = None


class RevocableStreams:
    """All streams of one server, on one event loop."""

    def __init__(self, access: Access, look_seconds: float = _LOOK_SECONDS) -> None:
        self._access = access
        self._look_seconds = look_seconds
        self._calls: set[_Call] = set()
        self._next_look: asyncio.TimerHandle | None = None

    def make_revocable(self, handler: Any, last_words: LastWords | None = None) -> Any:
        """Return a handler whose streams end with UNAUTHENTICATED, in ``last_words`` if there are
        any. A handler without response streams is returned unchanged."""
        codecs = handler.request_deserializer, handler.response_serializer
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(self._answering(handler.unary_stream, last_words), *codecs)
        if inspect.isasyncgenfunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(self._answering(handler.stream_stream, last_words), *codecs)
        return handler

    def _answering(self, handle: Callable[[Any, Context], AsyncGenerator[Any]], last_words: LastWords | None) -> Any:
        async def answer(request: Any, context: Context) -> AsyncGenerator[Any]:
            responses = handle(request, context)
            del request  # it may be large, and the answer long in coming
            call = self._noted(context)
            try:
                while call.error is None:
                    call.is_waiting = True
                    response = await anext(responses, None)
                    call.is_waiting = False
                    if response is None:
                        return
                    yield response
            except asyncio.CancelledError:
                if call.error is None:
                    raise
                call.task.uncancel()
            finally:
                call.is_waiting = False
                self._calls.discard(call)
                await responses.aclose()
            if last_words is None:
                await abort(context, call.error)
            yield last_words(call.error)

        return answer

    def _noted(self, context: Context) -> _Call:
        task = asyncio.current_task()
        assert task is not None, "grpc answers each call in a task"
        try:
            call = _Call(context, self._access.principal_of(context).name, task)
        except UnauthenticatedError:  # the handler itself says so
            return _Call(context, "", task)
        self._calls.add(call)
        self._look_later()
        return call

    def _look_later(self) -> None:
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(self._look_seconds, self._look)

    def _look(self) -> None:
        self._next_look = None
        for call in self._calls:
            if call.error is None:
                call.error = self._objection(call)
                if call.error is not None and call.is_waiting:
                    call.task.cancel()
        if self._calls:
            self._look_later()

    def _objection(self, call: _Call) -> UnauthenticatedError | None:
        try:
            name = self._access.principal_of(call.context).name
        except UnauthenticatedError as error:
            return error
        if name != call.name:
            return UnauthenticatedError("the token is another principal's by now", why="wrong")
        return None
