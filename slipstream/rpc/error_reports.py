"""Calls that end with an error instead of an answer, and are counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc

_told: ContextVar[Callable[[BaseException], None] | None] = ContextVar("told", default=None)


class ReportsErrors(grpc.aio.ServerInterceptor):
    """Tells of each call of a service that `slipstream.rpc.status.abort` ends: its method and the
    error."""

    def __init__(self, service: str, methods: Collection[str], tell: Callable[[str, BaseException], None]) -> None:
        """``service`` is its full name. Of other methods than these nothing is told: a caller may
        ask for any name."""
        self._service = service
        self._methods = frozenset(methods)
        self._tell = tell

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        service, _, method = str(handler_call_details.method).lstrip("/").rpartition("/")
        if service == self._service and method in self._methods:
            _told.set(partial(self._tell, method))
        return await continuation(handler_call_details)


def report_error(error: BaseException) -> None:
    """Tell that the call which runs here ends with an error."""
    tell = _told.get()
    if tell is not None:
        tell(error)
