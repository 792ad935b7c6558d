"""Channels and addresses."""

from __future__ import annotations

import json
import secrets

import grpc

from slipstream.agreed import PEER_KEY

MAX_MESSAGE_BYTES = 64 * 2**20
"""A prompt of a million tokens is about 4 MB on the wire: over grpc's default limit of 4 MiB."""

MAX_METADATA_BYTES = 16 * 2**10
"""Most header fields of a call, as HTTP/2 counts them. A large JSON web token takes 4 KiB."""

MOST_STREAMS = 100
"""Most calls at once on one connection. Before it is refused a call takes up to 0.6 MB, for 16 MiB
of metadata by reference."""

_MOST_CONNECTIONS = 32
"""Connections that a channel of ours makes to one address, the next when all before have
`MOST_STREAMS` calls."""

_IDENTITY_ALONE = 1
"""The set of compressions, as bits. A compressed message of 15 KB may become one of 15 MiB before
its caller is known."""

_MAX_RECEIVE = "grpc.max_receive_message_length"

_COMMON_OPTIONS = (
    ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
    (_MAX_RECEIVE, MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    (
        "grpc.min_reconnect_backoff_ms",
        1_000,
    ),  # as long as an attempt may take, refused or not: a busy peer's first words do
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share a connection
    ("grpc.max_connections_per_subchannel_cap", _MOST_CONNECTIONS),
    ("grpc.service_config", json.dumps({"connectionScaling": {"maxConnectionsPerSubchannel": _MOST_CONNECTIONS}})),
)
SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    # Both the same: between the two calls would be refused at random.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    (
        "grpc.http2.settings_timeout",
        5_000,
    ),  # until a client has acknowledged ours it may send 16 MiB of metadata a call
    ("grpc.so_reuseport", 0),  # else a second server on a busy port would take half its calls
    # A client may ping as often as it likes down to once a second, in an idle chat and without any
    # call too: clients behind gateways do. Half a second leaves room for pings that come in pairs
    # late and early. Only what is faster for a while is told "too_many_pings" and loses its
    # connection: five strikes, forgotten with each message that we send.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 5),
    ("grpc.keepalive_permit_without_calls", 1),
)
SHARED_PORT_OPTIONS = (
    *(option for option in SERVER_OPTIONS if option[0] != "grpc.so_reuseport"),
    ("grpc.so_reuseport", 1),
)
"""For servers that share their port on purpose."""

PEER_METADATA = ((PEER_KEY, secrets.token_hex(16)),)
"""This process's own: random, so that nobody guesses it, and never another, so that a stream lost
and found loses nothing."""


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None = None,
    name: str = "",
    max_receive_bytes: int = MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """A channel to ``host:port``, in plaintext without credentials; it connects when first used and
    again when the peer comes back. ``name`` is what its certificate is for, if not for its address.
    A message of more than ``max_receive_bytes`` ends its call."""
    others = [option for option in CHANNEL_OPTIONS if option[0] != _MAX_RECEIVE]
    options = (*others, (_MAX_RECEIVE, max_receive_bytes))
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    named = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.aio.secure_channel(address, credentials, options=(*options, *named))
