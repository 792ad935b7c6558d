"""Calls that are refused from their headers: nothing of their messages is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health

from slipstream.errors import Code, SlipstreamError
from slipstream.rpc.channel import MAX_METADATA_BYTES
from slipstream.rpc.status import abort

HEALTH = f"/{health.SERVICE_NAME}/"
"""What the names of health's methods begin with: probes have no secrets."""

_FIELD_BYTES = 32
"""What a header field takes beside its name and value, as HTTP/2 counts."""


_HELD_SECONDS = 4.0
"""How long a call with too much metadata is held: reading it took milliseconds, and a connection has few calls at once."""


class MetadataTooLargeError(SlipstreamError):
    """A call's metadata is larger than is read."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "METADATA_TOO_LARGE"


def refusing(error: SlipstreamError, after_seconds: float = 0) -> Any:
    """A handler that ends a call with an error, perhaps after a while: a stream's, which fits calls of all kinds."""

    async def refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        await asyncio.sleep(after_seconds)
        await abort(context, error)
        yield  # makes this what a stream's handler is

    return grpc.stream_stream_rpc_method_handler(refuse)


class LimitsMetadata(grpc.aio.ServerInterceptor):
    """Refuses calls with more metadata than `MAX_METADATA_BYTES`.

    gRPC's own limit holds only for clients that have acknowledged the server's settings; others may send 16 MiB a call.
    """

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The handler itself, or one that refuses."""
        metadata = handler_call_details.invocation_metadata or ()
        size = sum(len(key) + len(value) + _FIELD_BYTES for key, value in metadata)
        if size <= MAX_METADATA_BYTES:
            return await continuation(handler_call_details)
        error = MetadataTooLargeError(f"metadata takes {size} bytes; send at most {MAX_METADATA_BYTES}")
        return refusing(error, _HELD_SECONDS)
