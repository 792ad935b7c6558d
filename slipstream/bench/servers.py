"""Make the server of an address: HTTP by its scheme, else gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from slipstream.bench.goals import BadOptionError
from slipstream.bench.openai_server import OpenAiServer
from slipstream.bench.server import Asked, BenchServer
from slipstream.bench.slipstream_server import SlipstreamServer
from slipstream.client import Settings
from slipstream.transport.addresses import PlaintextError, stays_here
from slipstream.transport.http_client import Origin


@dataclass(frozen=True, slots=True)
class Reach:
    """Credentials for all servers of a load."""

    token: str | None = None
    credentials: grpc.ChannelCredentials | None = None
    metadata: Sequence[tuple[str, str]] = ()
    tls: ssl.SSLContext | None = None
    """For https; None trusts the public authorities."""


def is_http(address: str) -> bool:
    """Return whether an address is a URL of HTTP."""
    return address.startswith(("http://", "https://"))


def server_at(address: str, asked: Asked, reach: Reach) -> BenchServer:
    """Return the server at an address. BadOptionError if it is none, PlaintextError if others on
    the network could read the token."""
    if not is_http(address):
        return SlipstreamServer(
            address, _settings(asked), reach.credentials, reach.metadata, api=asked.api, timeout=asked.timeout
        )
    try:
        origin = Origin.parse(address, reach.tls or ssl.create_default_context())
    except ValueError as error:
        raise BadOptionError(f"{address} must be http[s]://host:port/v1: {error}") from error
    if reach.token and origin.tls is None and not stays_here(f"{origin.host}:{origin.port}"):
        raise PlaintextError(f"the token would go to {address} in plaintext: use https, or a loopback address")
    return OpenAiServer(address, origin, asked, reach.token)


def _settings(asked: Asked) -> Settings:
    return Settings(
        temperature=asked.temperature,
        seed=asked.seed,
        ignore_end_tokens=asked.ignore_end or None,
        draft_length=asked.draft_length,
    )
