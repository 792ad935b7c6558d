"""A gRPC server as every service runs it: health, reflection, channelz, an honest port, a drain on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from slipstream.errors import Code, SlipstreamError
from slipstream.rpc.channel import MAX_MESSAGE_BYTES, SERVER_OPTIONS, SHARED_PORT_OPTIONS
from slipstream.rpc.releasing import ReleasesRequests

log = logging.getLogger(__name__)


class AddressInUseError(SlipstreamError):
    """The address to listen on is taken."""

    code = Code.ALREADY_EXISTS
    reason = "ADDRESS_IN_USE"

    @classmethod
    def at(cls, address: str) -> AddressInUseError:
        """With what to do about it."""
        return cls(
            f"cannot listen on {address}: it is in use or not an address of this machine; "
            "stop what listens there or choose another --address"
        )


class Server:
    """Three phases: `start` listens, `set_serving` tells health checks, `run_until_signalled` serves and drains."""

    def __init__(
        self,
        address: str,
        service_names: Sequence[str],
        *,
        drain_seconds: float = 10.0,
        private: str | None = None,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """With a ``private`` address too the port is shared with other processes, each of which has one of its own. A larger
        message is refused, with RESOURCE_EXHAUSTED, before anything of it is read."""
        self.address = address
        self._private = private
        self.shares_port = private is not None
        options = dict(SHARED_PORT_OPTIONS if self.shares_port else SERVER_OPTIONS)
        options["grpc.max_receive_message_length"] = max_request_bytes
        self.grpc = grpc.aio.server(interceptors=(ReleasesRequests(),), options=tuple(options.items()))
        self._service_names = tuple(service_names)
        self._drain_seconds = drain_seconds
        self._health = health.aio.HealthServicer()
        self.draining = asyncio.Event()
        """Set once the server wants to stop: streams that wait for nothing should end."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        channelz.add_channelz_servicer(self.grpc)
        described = (*service_names, health.SERVICE_NAME, "grpc.channelz.v1.Channelz", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(described, self.grpc)

    async def start(self) -> int:
        """Listen; returns the port, of interest if the address asked for port 0. AddressInUseError if it is taken."""
        port = self._listen_on(self.address)
        if self._private is not None:
            self._listen_on(self._private)
        await self.set_serving(False)
        await self.grpc.start()
        return port

    def _listen_on(self, address: str) -> int:
        try:
            return self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressInUseError.at(address) from error

    async def set_serving(self, serving: bool) -> None:
        """Report SERVING or NOT_SERVING for the whole server and each of its services."""
        kind = health_pb2.HealthCheckResponse
        for name in ("", *self._service_names):
            await self._health.set(name, kind.SERVING if serving else kind.NOT_SERVING)

    async def run_until_signalled(self, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, then refuse new calls, give running ones time to end, and stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.draining.set)
        await self.draining.wait()
        log.info("draining for at most %g s", self._drain_seconds)
        await self._health.enter_graceful_shutdown()
        if on_drain is not None:
            await on_drain()
        await self.grpc.stop(self._drain_seconds)
