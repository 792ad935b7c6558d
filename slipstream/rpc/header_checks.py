"""Refusal of calls by their headers, before any of their messages is read."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_status import rpc_status

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.channel import MAX_METADATA_BYTES
from slipstream.rpc.error_reports import report_error
from slipstream.rpc.status import status_of

HEALTH = f"/{health.SERVICE_NAME}/"
"""Beginning of the health methods' names. Probes have no secrets, so no token is needed."""

_FIELD_BYTES = 32
"""Bytes of a header field besides its name and value, as HTTP/2 counts."""

_HELD_SECONDS = 4.0
"""Seconds for which a call with too much metadata is held. Reading it took milliseconds, and a
connection has few calls at once."""

_MOST_WASTE = 8 * 2**20
"""Bytes of refused metadata after which garbage is collected. grpc leaves them in reference cycles,
and the collector of a service runs rarely."""


class MetadataTooLargeError(SlipstreamError):
    """The metadata of a call is too large."""

    reason = Reason.METADATA_TOO_LARGE


def refusing_handler(error: SlipstreamError, hold: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Return a handler that holds a call and then ends it with an error.

    It is a handler of streams, which fits calls of all kinds.
    """

    async def refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        if hold is not None:
            await hold()
        report_error(error)
        # No exception is raised: grpc keeps it in a cycle with the call and its metadata.
        status = rpc_status.to_status(status_of(error))
        context.set_trailing_metadata(status.trailing_metadata)
        context.set_code(status.code)
        context.set_details(status.details)
        return
        yield  # makes this an async generator

    return grpc.stream_stream_rpc_method_handler(refuse)


class LimitsMetadata(grpc.aio.ServerInterceptor):
    """Interceptor that refuses calls with more metadata than `MAX_METADATA_BYTES`.

    gRPC's own limit holds only for clients that have acknowledged the server's settings. Other
    clients may send 16 MiB in a call.
    """

    def __init__(self) -> None:
        self._waste = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the method's own handler, or one that refuses."""
        metadata = handler_call_details.invocation_metadata or ()
        size = sum(len(key) + len(value) + _FIELD_BYTES for key, value in metadata)
        if size <= MAX_METADATA_BYTES:
            return await continuation(handler_call_details)
        error = MetadataTooLargeError(f"metadata takes {size} bytes; send at most {MAX_METADATA_BYTES}")
        self._waste += size
        return refusing_handler(error, self._hold)

    async def _hold(self) -> None:
        if self._waste > _MOST_WASTE:
            self._waste = 0
            gc.collect(1)
        await asyncio.sleep(_HELD_SECONDS)
