"""Channels to the other orchestrator processes of the same store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_status import rpc_status

from orchestrator.access.access import Access, Context, OpenAccess
from orchestrator.access.vouching import VOUCHING_METADATA
from orchestrator.errors import NotReadyError, SessionMovedError
from orchestrator.processes.process_slot import ProcessSlot
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import OwnerRow
from slipstream.rpc.connector import Connector
from slipstream.rpc.status import error_of_call
from slipstream.transport.addresses import PlaintextError

_FORWARDED = "slipstream-passed-on"
"""Metadata key of a call that another process has forwarded. Such a call is not forwarded again."""

_OWN_TO_A_HOP = ("grpc-", "user-agent", _FORWARDED, *VOUCHING_METADATA)
"""Beginnings of metadata keys that a forwarded call leaves out."""

_MOST_CHANNELS = 64
_CONNECT_SECONDS = 1.0


class ReplicaLostError(SessionMovedError):
    """The process that was asked has ended. It may have done what was asked."""


class Replicas:
    """Channels to the other processes, opened when they are first needed."""

    def __init__(self, ownership: Ownership, slot: ProcessSlot | None, connector: Connector) -> None:
        """``slot`` is this process's among those that share its port, if there are several."""
        self.ownership = ownership
        self._slot = slot
        self._connector = connector
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def connect(self, address: str) -> grpc.aio.Channel | None:
        """Return a connected channel to a process; None if the process cannot be reached."""
        address = (None if self._slot is None else self._slot.sibling_address(address)) or address
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
            if len(self._channels) > _MOST_CHANNELS:
                await self._channels.pop(next(iter(self._channels))).close()
        try:
            await asyncio.wait_for(channel.channel_ready(), _CONNECT_SECONDS)
        except TimeoutError:
            return None
        return channel

    def _open(self, address: str) -> grpc.aio.Channel:
        try:
            return self._connector.open_orchestrator(address)
        except PlaintextError as error:  # the operator has to change a setting; the client cannot
            raise NotReadyError(f"the process that owns this session cannot be reached: {error}") from error

    async def connect_siblings(self) -> dict[str, grpc.aio.Channel]:
        """Return channels to the processes that share this one's port, by address. Processes that
        cannot be reached are left out."""
        if self._slot is None:
            return {}
        addresses = [self._slot.address(number) for number in range(self._slot.count) if number != self._slot.number]
        found = await asyncio.gather(*map(self.connect, addresses))
        return {address: channel for address, channel in zip(addresses, found, strict=True) if channel is not None}

    async def close(self) -> None:
        """Close the channels."""
        for channel in [*self._channels.values()]:
            await channel.close()

    @asynccontextmanager
    async def while_alive(self, call: Any, owner: OwnerRow) -> AsyncIterator[None]:
        """Cancel a forwarded call when the process that answers it ends.

        ReplicaLostError if that happens; SessionMovedError if the process does not own the session
        any more.
        """

        async def cancel_when_gone() -> None:
            await self.ownership.until_gone(owner.id)
            call.cancel()

        watching = asyncio.create_task(cancel_when_gone())
        try:
            yield
        except asyncio.CancelledError:
            if not watching.done():
                raise
            raise ReplicaLostError("the process that owned this session has ended") from None
        except grpc.aio.AioRpcError as error:
            if is_away(error):
                raise ReplicaLostError("the process that owned this session cannot be reached") from error
            if error_of_call(error).reason == SessionMovedError.reason:
                raise SessionMovedError("another process owns this session by now") from error
            raise
        finally:
            watching.cancel()


def call_options(context: Context, access: Access | OpenAccess, address: str) -> dict[str, Any]:
    """Return the metadata and the timeout of a call that is forwarded to the process at an address.

    The metadata names the caller, with a proof for this address, and carries the caller's trace.
    UnauthenticatedError.
    """
    metadata = [pair for pair in context.invocation_metadata() or () if not pair[0].startswith(_OWN_TO_A_HOP)]
    on_behalf = access.forwarding_metadata(context, address)
    return {"metadata": [*metadata, (_FORWARDED, "1"), *on_behalf], "timeout": context.time_remaining()}


def is_forwarded(context: Context) -> bool:
    """Return True if another process has forwarded this call."""
    return any(key == _FORWARDED for key, _ in context.invocation_metadata() or ())


def is_away(error: grpc.aio.AioRpcError) -> bool:
    """Return True if there was no process to answer. What a process itself refuses has details."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and rpc_status.from_call(error) is None  # type: ignore[arg-type]
