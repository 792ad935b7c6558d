"""gRPC server of every service: health, reflection, channelz, TLS, a checked port, and a drain on
SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.rpc.channel import MAX_MESSAGE_BYTES, SERVER_OPTIONS, SHARED_PORT_OPTIONS
from slipstream.rpc.header_checks import LimitsMetadata
from slipstream.rpc.parsing import RefusesMalformed
from slipstream.rpc.request_release import ReleasesRequests
from slipstream.rpc.token_check import ChecksToken
from slipstream.transport.addresses import stays_here
from slipstream.transport.listening import Listening

log = logging.getLogger(__name__)

_CALLER_GONE = "ExecuteBatchError"
"""Name of grpc's private exception for a message whose call is already over."""


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return False for grpc's log lines about a caller that has gone: any caller can cause them."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != _CALLER_GONE


for _name in ("grpc._cython.cygrpc", "asyncio"):
    logging.getLogger(_name).addFilter(_is_worth_a_line)


class AddressInUseError(SlipstreamError):
    """The address to listen on is in use."""

    reason = Reason.ADDRESS_IN_USE

    @classmethod
    def at(cls, address: str, flag: str = "--address") -> AddressInUseError:
        """Return the error with advice."""
        return cls(
            f"cannot listen on {address}: it is in use or not an address of this machine; "
            f"stop what listens there or choose another {flag}"
        )


class _Later:
    """Target for generated code that adds a service to a server which has started.

    A started server accepts generic handlers. It warns of registered handlers, which are only a
    faster way to find a method.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, name: str, handlers: Mapping[str, Any]) -> None:
        """Do nothing: the generic handlers include these."""


class Server:
    """A server in four phases: `bind` takes the port, `start` answers there, `set_serving` sets its
    health, `run_until_signalled` serves and drains."""

    def __init__(
        self,
        address: str,
        service_names: Sequence[str],
        *,
        drain_seconds: float = 10.0,
        own: Sequence[str] = (),
        max_request_bytes: int = MAX_MESSAGE_BYTES,
        listening: Listening | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        innermost: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Addresses of its ``own`` mean that other processes share the port, and have own addresses
        too; a socket file among them is plaintext. A message of more than ``max_request_bytes`` is
        refused with RESOURCE_EXHAUSTED before it is read. Without ``listening`` ports are
        plaintext. ``interceptors`` see a call before its messages are read; ``innermost``
        interceptors wrap handlers of parsed messages."""
        self.address = address
        self._listening = listening = listening or Listening()
        self._own = own
        self.shares_port = bool(own)
        options = dict(SHARED_PORT_OPTIONS if self.shares_port else SERVER_OPTIONS)
        options["grpc.max_receive_message_length"] = max_request_bytes
        asking = () if listening.token is None else (ChecksToken(listening.token),)
        doors = (LimitsMetadata(), *asking, *interceptors)
        self.grpc = grpc.aio.server(
            interceptors=(*doors, ReleasesRequests(), RefusesMalformed(), *innermost), options=tuple(options.items())
        )
        self.later = cast(grpc.aio.Server, _Later(self.grpc))
        """Target for generated code that adds a service after the start."""
        self._service_names = tuple(service_names)
        self._port: int | None = None
        self._drain_seconds = drain_seconds
        self._health = health.aio.HealthServicer()
        self.draining = asyncio.Event()
        """Set when the server is about to stop. Idle streams should end then."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        self._admin: grpc.aio.Server | None = None
        if listening.admin_address:
            self._admin = grpc.aio.server(interceptors=(LimitsMetadata(),), options=SERVER_OPTIONS)
            # Health is here too, for probes on this machine that have no certificate.
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._admin)
            self._serve_introspection(self._admin)
        elif stays_here(address):
            self._serve_introspection(self.grpc)

    def _serve_introspection(self, server: grpc.aio.Server) -> None:
        """Serve channelz and reflection, which list the connected callers and all methods."""
        channelz.add_channelz_servicer(server)
        described = (*self._service_names, health.SERVICE_NAME, "grpc.channelz.v1.Channelz", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(described, server)

    def bind(self) -> int:
        """Take the port, and return its number. AddressInUseError if it is in use."""
        if self._port is None:
            self._port = self._listen_on(self.address, self._listening.credentials)
            for address in self._own:
                self._listen_on(address, None if address.startswith("unix:") else self._listening.credentials)
        return self._port

    async def start(self) -> int:
        """Answer on the port that `bind` takes; return its number."""
        port = self.bind()
        await self.set_serving(False)
        await self.grpc.start()
        if self._admin is not None:
            await self._start_admin(self._admin, self._listening.admin_address)
        return port

    async def _start_admin(self, admin: grpc.aio.Server, address: str) -> None:
        try:
            log.info("channelz, reflection and health are on port %d", admin.add_insecure_port(address))
        except RuntimeError as error:
            raise AddressInUseError.at(address, "--admin-address") from error
        await admin.start()

    def _listen_on(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        try:
            if credentials is not None:
                return self.grpc.add_secure_port(address, credentials)
            return self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressInUseError.at(address) from error

    async def set_serving(self, serving: bool) -> None:
        """Report SERVING or NOT_SERVING for the whole server and each of its services."""
        kind = health_pb2.HealthCheckResponse
        for name in ("", *self._service_names):
            await self._health.set(name, kind.SERVING if serving else kind.NOT_SERVING)

    async def run_until_signalled(self, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until SIGTERM or SIGINT, then refuse new calls, give running ones time to end, and
        stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.draining.set)
        await self.draining.wait()
        log.info("draining for at most %g s", self._drain_seconds)
        await self._health.enter_graceful_shutdown()
        if on_drain is not None:
            await on_drain()
        await self.grpc.stop(self._drain_seconds)
        if self._admin is not None:
            await self._admin.stop(None)
