"""A channel that uses new credentials when it has to connect again after they have changed."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from slipstream.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from slipstream.transport.reloading import Reloaded
from slipstream.transport.tokens import TOKEN_KEY

_LAST_CALLS_SECONDS = 30.0
"""Seconds for the last calls on a channel that has lost its connection. They end by themselves;
a cancellation would look like the caller's."""


class RenewingChannel(grpc.aio.Channel):
    """A grpc.aio.Channel to one address. An open connection keeps the credentials it was opened
    with."""

    def __init__(
        self,
        address: str,
        credentials: Reloaded[grpc.ChannelCredentials] | None,
        token: Reloaded[str] | None,
        name: str = "",
        max_receive_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Every call shows the current ``token``. ``name`` is the name in the server's certificate,
        if it differs from the address. A message of more than ``max_receive_bytes`` ends its
        call."""
        self._max_receive_bytes = max_receive_bytes
        self._address = address
        self._credentials = credentials
        self._token = token
        self._name = name
        self._used = None if credentials is None else credentials.current
        self._channel = open_channel(address, self._used, name, max_receive_bytes)
        self._retiring: set[asyncio.Task[None]] = set()

    def unary_unary(self, *arguments: Any, **keywords: Any) -> Any:
        """Return a call of one request and one response, as grpc.aio.Channel does."""
        return self._method("unary_unary", arguments, keywords)

    def unary_stream(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: D102
        return self._method("unary_stream", arguments, keywords)

    def stream_unary(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: D102
        return self._method("stream_unary", arguments, keywords)

    def stream_stream(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: D102
        return self._method("stream_stream", arguments, keywords)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: D102
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:  # noqa: D102
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:  # noqa: D102
        await self._current().channel_ready()

    async def close(self, grace: float | None = None) -> None:  # noqa: D102
        await self._channel.close(grace)
        for retiring in tuple(self._retiring):
            retiring.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def __aenter__(self) -> RenewingChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _method(self, kind: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        def call(*asked: Any, metadata: Any = None, **how: Any) -> Any:
            method = getattr(self._current(), kind)(*arguments, **keywords)
            return method(*asked, metadata=self._with_token(metadata), **how)

        return call

    def _with_token(self, metadata: Any) -> Any:
        return metadata if self._token is None else (*(metadata or ()), (TOKEN_KEY, self._token.current))

    def _current(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return self._channel
        newest = self._credentials.current
        if newest is not self._used and self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            retiring = asyncio.get_running_loop().create_task(self._channel.close(_LAST_CALLS_SECONDS))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
            self._used = newest
            self._channel = open_channel(self._address, newest, self._name, self._max_receive_bytes)
        return self._channel
