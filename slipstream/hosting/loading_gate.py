"""Refusal of calls while the model is loaded: the service already listens, so that callers know
that it is not away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.status import abort


class LoadingError(SlipstreamError):
    """The service still loads its model."""

    reason = Reason.LOADING
    retry_after = 1.0


class RefusesWhileLoading(grpc.GenericRpcHandler):
    """Handler that refuses all calls without another handler until the model is ``loaded``. Health
    answers NOT_SERVING meanwhile."""

    def __init__(self) -> None:
        self.loaded = False

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return a stream handler, which fits all calls; None once the model is loaded."""
        return None if self.loaded else grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
    await abort(context, LoadingError("the model is still being loaded"))
    yield  # makes this an async generator
