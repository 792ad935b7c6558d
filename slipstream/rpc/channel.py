"""gRPC channels and the options of channels and servers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import grpc

from slipstream.agreed import PEER_KEY

MAX_MESSAGE_BYTES = 64 * 2**20
"""Most bytes of a message. A prompt of a million tokens takes about 4 MB on the wire, more than
grpc's default limit of 4 MiB."""

MAX_METADATA_BYTES = 16 * 2**10
"""Most bytes of a call's header fields, as HTTP/2 counts them. A large JSON web token takes
4 KiB."""

MOST_STREAMS = 100
"""Most concurrent calls on one connection. A call with 16 MiB of metadata by reference takes up to
0.6 MB until it is refused."""

_MOST_CONNECTIONS = 32
"""Most connections of a channel to one address. It opens the next one when all have `MOST_STREAMS`
calls."""

_IDENTITY_ALONE = 1
"""Allowed compressions, as bits: none. A compressed message of 15 KB could become 15 MiB before its
caller is known."""

_MAX_RECEIVE = "grpc.max_receive_message_length"

_COMMON_OPTIONS = (
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
    (_MAX_RECEIVE, MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVICE_CONFIG = "grpc.service_config"
_CONNECTIONS = {"connectionScaling": {"maxConnectionsPerSubchannel": _MOST_CONNECTIONS}}
CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # An attempt to connect may take this long: a busy peer answers late.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share a connection
    ("grpc.max_connections_per_subchannel_cap", _MOST_CONNECTIONS),
    (_SERVICE_CONFIG, json.dumps(_CONNECTIONS)),
)
CLIENT_OPTIONS = (
    *(option for option in CHANNEL_OPTIONS if option[0] != _SERVICE_CONFIG),
    # Orchestrators of one store share all sessions: calls go to all addresses of a name in turn,
    # and away from one that is lost. Between services a stream belongs to one process, so those
    # channels take the first address.
    (_SERVICE_CONFIG, json.dumps(_CONNECTIONS | {"loadBalancingConfig": [{"round_robin": {}}]})),
    # A new pod has a new address. gRPC looks the name up when a connection is lost, and by default
    # at most every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)
"""Options of a client's channel to the orchestrators."""
SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    # Both limits are equal: between them, calls would be refused at random.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    # Until a client has acknowledged the settings, it may send 16 MiB of metadata in a call.
    ("grpc.http2.settings_timeout", 5_000),
    ("grpc.so_reuseport", 0),  # else a second server on a busy port would take half its calls
    # A client may ping once a second, also in an idle chat or without any call: clients behind
    # gateways do. Half a second leaves room for pings that arrive early or late. A client that
    # pings faster for a while gets "too_many_pings" and loses its connection. Each message from
    # the server resets the count of five.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 5),
    ("grpc.keepalive_permit_without_calls", 1),
)
SHARED_PORT_OPTIONS = (
    *(option for option in SERVER_OPTIONS if option[0] != "grpc.so_reuseport"),
    ("grpc.so_reuseport", 1),
)
"""Options of servers that share their port with other processes."""

PEER_METADATA = ((PEER_KEY, secrets.token_hex(16)),)
"""Key of this process: random, so that it cannot be guessed, and constant, so that a new stream
keeps the handles."""


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None = None,
    name: str = "",
    max_receive_bytes: int = MAX_MESSAGE_BYTES,
    options: Sequence[tuple[str, Any]] = CHANNEL_OPTIONS,
) -> grpc.aio.Channel:
    """Return a channel to ``host:port``, in plaintext if there are no credentials.

    The channel connects when it is first used, and again when the peer comes back. ``name`` is the
    name in the peer's certificate, if it differs from the address. A message of more than
    ``max_receive_bytes`` ends its call.
    """
    others = [option for option in options if option[0] != _MAX_RECEIVE]
    chosen = (*others, (_MAX_RECEIVE, max_receive_bytes))
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=chosen)
    named = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.aio.secure_channel(address, credentials, options=(*chosen, *named))
