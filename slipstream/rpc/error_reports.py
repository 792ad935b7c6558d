"""Reports of calls that end with an error, for counting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc

_report: ContextVar[Callable[[BaseException], None] | None] = ContextVar("report", default=None)


class ReportsErrors(grpc.aio.ServerInterceptor):
    """Interceptor that reports each call of a service that `slipstream.rpc.status.abort` ends."""

    def __init__(self, service: str, methods: Collection[str], report: Callable[[str, BaseException], None]) -> None:
        """``report`` gets the method and the error. ``service`` is a full name. Calls of other
        methods are not reported, because a caller may ask for any name."""
        self._service = service
        self._methods = frozenset(methods)
        self._report = report

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the method's own handler, and remember where to report its error."""
        service, _, method = str(handler_call_details.method).lstrip("/").rpartition("/")
        if service == self._service and method in self._methods:
            _report.set(partial(self._report, method))
        return await continuation(handler_call_details)


def report_error(error: BaseException) -> None:
    """Report that the current call ends with an error."""
    report = _report.get()
    if report is not None:
        report(error)
