"""Channels and addresses."""

from __future__ import annotations

import secrets

import grpc

MAX_MESSAGE_BYTES = 64 * 2**20
"""A prompt of a million tokens is about 4 MB on the wire: over grpc's default limit of 4 MiB."""

_COMMON_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
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
)
SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),  # else a second server on a busy port would take half its calls
    # A client may ping as often as it likes down to once a second, in an idle chat and without any call too: clients behind
    # gateways do. Half a second leaves room for pings that come in pairs late and early. Only what is faster for a while is
    # told "too_many_pings" and loses its connection: five strikes, forgotten with each message that we send.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 5),
    ("grpc.keepalive_permit_without_calls", 1),
)
SHARED_PORT_OPTIONS = (
    *(option for option in SERVER_OPTIONS if option[0] != "grpc.so_reuseport"),
    ("grpc.so_reuseport", 1),
)
"""For servers that share their port on purpose."""

PEER_KEY = "slipstream-peer-key"
"""Metadata of a stream of items: whoever has opened handles under a key is who may use and close them."""

PEER_METADATA = ((PEER_KEY, secrets.token_hex(16)),)
"""This process's own: random, so that nobody guesses it, and never another, so that a stream lost and found loses nothing."""


def open_channel(address: str, credentials: grpc.ChannelCredentials | None = None, name: str = "") -> grpc.aio.Channel:
    """A channel to ``host:port``, in plaintext without credentials; it connects when first used and again when the peer comes
    back. ``name`` is what its certificate is for, if not for its address."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    named = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.aio.secure_channel(address, credentials, options=(*CHANNEL_OPTIONS, *named))
