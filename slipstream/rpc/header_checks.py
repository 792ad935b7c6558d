"""Calls that are refused from their headers: nothing of their messages is read."""

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
"""What the names of health's methods begin with: probes have no secrets."""

_FIELD_BYTES = 32
"""What a header field takes beside its name and value, as HTTP/2 counts."""


_HELD_SECONDS = 4.0
"""How long a call with too much metadata is held: reading it took milliseconds, and a connection
has few calls at once."""


_MOST_WASTE = 8 * 2**20
"""Bytes of refused metadata that may lie about. grpc leaves them in circles, and a service's
collector comes by rarely."""


class MetadataTooLargeError(SlipstreamError):
    """A call's metadata is larger than is read."""

    reason = Reason.METADATA_TOO_LARGE


def refusing_handler(error: SlipstreamError, hold: Callable[[], Awaitable[None]] | None = None) -> Any:
    """A handler that ends a call with an error, after it was held: a stream's, which fits calls of
    all kinds."""

    async def refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        if hold is not None:
            await hold()
        report_error(error)
        # Without an exception: grpc keeps those in a circle with the call and its metadata, until
        # the collector comes by.
        status = rpc_status.to_status(status_of(error))
        context.set_trailing_metadata(status.trailing_metadata)
        context.set_code(status.code)
        context.set_details(status.details)
        return
        yield  # makes this what a stream's handler is

    return grpc.stream_stream_rpc_method_handler(refuse)


class LimitsMetadata(grpc.aio.ServerInterceptor):
    """Refuses calls with more metadata than `MAX_METADATA_BYTES`.

    gRPC's own limit holds only for clients that have acknowledged the server's settings; others may
    send 16 MiB a call.
    """

    def __init__(self) -> None:
        self._waste = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The handler itself, or one that refuses."""
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
