"""Serving the application on a socket until a signal comes."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from typing import NoReturn

import uvicorn

from gateway.app import create_app
from gateway.certificate import reloaded_context
from gateway.limits import IdleLimitedProtocol
from gateway.settings import GatewaySettings
from slipstream.errors import SlipstreamError

log = logging.getLogger("gateway")


def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT. Exits with one line if the settings are wrong."""
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    host, _, port = settings.address.rpartition(":")
    if not host or not port.isdecimal():
        sys.exit(f"gateway: --address must be host:port, but is {settings.address!r}")
    try:
        files = settings.tls_files()
        context = reloaded_context(files) if files.certificate else None
        app = create_app(settings)
    except SlipstreamError as error:
        sys.exit(f"gateway: {error}")
    listening = _listen(host, int(port))
    config = uvicorn.Config(
        app,
        http=IdleLimitedProtocol,
        ws="none",
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=settings.drain_seconds,
        h11_max_incomplete_event_size=settings.max_header_kib * 1024,
        ssl_context_factory=(lambda _config, _default: context) if context else None,
    )
    scheme = "https" if context else "http"
    _end_well()
    log.info("OpenAI's API at %s://%s:%d/v1", scheme, host, listening.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listening])


def _end_well() -> None:
    """Exit with status 0 after SIGTERM or SIGINT, as the services do. uvicorn raises the signal
    again once the running requests have ended."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Exits with one line if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        sys.exit(f"gateway: --address {host}:{port} cannot be listened on: {error}")
