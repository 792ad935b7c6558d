"""An interceptor that refuses unauthenticated calls from their headers. It reads none of their
messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from grpc_channelz.v1 import channelz_pb2

from orchestrator.access.access import Access, Context
from orchestrator.access.revocation import LastWords, RevocableStreams
from orchestrator.errors import OperatorsOnlyError, UnauthenticatedError
from slipstream.rpc.header_checks import HEALTH, refusing_handler
from slipstream.rpc.status import abort

_CHANNELZ = f"/{channelz_pb2.DESCRIPTOR.services_by_name['Channelz'].full_name}/"


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):
    """Answers every method except health's only to principals, and channelz's only to operators,
    because channelz shows who is connected."""

    def __init__(self, in_stream: Mapping[str, LastWords] | None = None) -> None:
        """``in_stream`` are methods that check the caller themselves before they read, because they
        report errors in responses. Their functions make such a response."""
        self._in_stream = in_stream or {}
        self._access: Access | None = None
        self._streams: RevocableStreams | None = None

    def guard(self, access: Access) -> AuthenticationInterceptor:
        """Authenticate by these rules. Call this before the server starts; it returns the
        interceptor."""
        self._access, self._streams = access, RevocableStreams(access)
        return self

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the handler itself, or one that refuses."""
        method: str = handler_call_details.method
        if method.startswith(HEALTH):
            return await continuation(handler_call_details)
        access, streams = self._access, self._streams
        assert access is not None and streams is not None, "guard comes before the server's start"
        try:
            access.principal_in(handler_call_details.invocation_metadata or ())
        except UnauthenticatedError as error:
            if method not in self._in_stream:
                return refusing_handler(error)
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if not method.startswith(_CHANNELZ):
            return streams.make_revocable(handler, self._in_stream.get(method))
        answering = _for_operators(handler.unary_unary, access)
        return grpc.unary_unary_rpc_method_handler(answering, handler.request_deserializer, handler.response_serializer)


def _for_operators(answer: Callable[[Any, Context], Awaitable[Any]], access: Access) -> Callable[[Any, Context], Any]:
    async def answer_operators(request: Any, context: Context) -> Any:
        try:
            caller = access.principal_of(context)
        except UnauthenticatedError as error:
            await abort(context, error)
        if not caller.operator:
            await abort(context, OperatorsOnlyError("channelz tells who is connected: it answers operators"))
        return await answer(request, context)

    return answer_operators
