"""Refusal of calls that do not show the service's token, before anything else is done for them."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.header_checks import HEALTH
from slipstream.rpc.status import abort
from slipstream.transport.reloading import Reloaded
from slipstream.transport.tokens import TOKEN_KEY

log = logging.getLogger(__name__)

_SAY_AGAIN_SECONDS = 10.0


class PeerUnauthenticatedError(SlipstreamError):
    """The caller has not shown this service's token."""

    reason = Reason.PEER_UNAUTHENTICATED


class ChecksToken(grpc.aio.ServerInterceptor):
    """Interceptor that answers only calls with the current token, and health checks."""

    def __init__(self, token: Reloaded[str]) -> None:
        self._token = token
        self._quiet_until = 0.0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the method's own handler, or one that refuses calls of all kinds."""
        if handler_call_details.method.startswith(HEALTH) or self._shows_token(handler_call_details):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    def _shows_token(self, handler_call_details: Any) -> bool:
        said = [value for key, value in handler_call_details.invocation_metadata or () if key == TOKEN_KEY]
        return len(said) == 1 and hmac.compare_digest(said[0].encode(), self._token.current.encode())

    async def _refuse(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _SAY_AGAIN_SECONDS
            log.warning(
                "a call from %s was refused: it does not show the token of this service's --peer-token-file",
                context.peer(),
            )
        await abort(context, PeerUnauthenticatedError("the call does not show this service's token: --peer-token-file"))
        yield  # makes this an async generator
