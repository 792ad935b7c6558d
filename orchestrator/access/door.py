"""Calls that show nothing, or what is not believed, are refused from their headers: nothing of
their messages is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from grpc_channelz.v1 import channelz_pb2

from orchestrator.access.access import Access, Context
from orchestrator.access.standing import LastWords, StandingCalls
from orchestrator.errors import OperatorsOnlyError, UnauthenticatedError
from slipstream.rpc.header_checks import HEALTH, refusing_handler
from slipstream.rpc.status import abort

_CHANNELZ = f"/{channelz_pb2.DESCRIPTOR.services_by_name['Channelz'].full_name}/"


class AsksWhoCalls(grpc.aio.ServerInterceptor):
    """Answers every method but health's only to principals, and channelz's, which tells who is
    connected, only to operators."""

    def __init__(self, in_stream: Mapping[str, LastWords] | None = None) -> None:
        """Methods ``in_stream`` look at the caller themselves, before they read: they tell errors
        in responses, which the functions make."""
        self._in_stream = in_stream or {}
        self._access: Access | None = None
        self._standing: StandingCalls | None = None

    def guard(self, access: Access) -> AsksWhoCalls:
        """Ask by these rules, from before the server starts; returns this door."""
        self._access, self._standing = access, StandingCalls(access)
        return self

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The handler itself, or one that refuses."""
        method: str = handler_call_details.method
        if method.startswith(HEALTH):
            return await continuation(handler_call_details)
        access, standing = self._access, self._standing
        assert access is not None and standing is not None, "guard comes before the server's start"
        try:
            access.shown_by(handler_call_details.invocation_metadata or ())
        except UnauthenticatedError as error:
            if method not in self._in_stream:
                return refusing_handler(error)
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if not method.startswith(_CHANNELZ):
            return standing.watched(handler, self._in_stream.get(method))
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
