"""A service that is there and not ready yet: it listens while its model is loaded, so that callers
know it is not away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.status import abort


class LoadingError(SlipstreamError):
    """The model is still being loaded."""

    reason = Reason.LOADING
    retry_after = 1.0


class RefusesWhileLoading(grpc.GenericRpcHandler):
    """Answers every call that nobody else does, until the model is ``loaded``. Health has its own
    answer, NOT_SERVING."""

    def __init__(self) -> None:
        self.loaded = False

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """A handler of streams, which fits calls of all kinds."""
        return None if self.loaded else grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
    await abort(context, LoadingError("the model is still being loaded"))
    yield  # makes this what a stream's handler is
