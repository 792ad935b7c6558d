"""The outermost layer of the application: the exchange's headers, its metrics, and its faults."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import fault_error
from gateway.exchange import begin_exchange
from gateway.headers import add_headers, request_id_of
from gateway.metrics import Metrics

log = logging.getLogger(__name__)


class Edge:
    """Serve each request as an exchange. A fault of the gateway's own becomes status 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = begin_exchange(request_id_of(Headers(scope=scope)), self._metrics)
        self._metrics.count_begin()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                add_headers(MutableHeaders(scope=message), exchange)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            log.exception("request %s failed", exchange.request_id)
            if status:
                raise  # it is too late for another status
            await fault_error(error).response()(scope, receive, send_with_headers)
        finally:
            self._metrics.count_end(exchange, getattr(scope.get("route"), "path", None), status)
