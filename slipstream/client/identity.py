"""The client's token, and the check that it stays private."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from slipstream.transport.addresses import PlaintextError, stays_here
from slipstream.transport.tokens import TOKEN_KEY, bearer


def call_metadata(
    address: str, credentials: grpc.ChannelCredentials | None, metadata: Sequence[tuple[str, str]], token: str | None
) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call. PlaintextError if others on the
    network could read the token, ValueError if it is malformed."""
    if token is None:
        return tuple(metadata)
    if credentials is None and not stays_here(address):
        raise PlaintextError(
            f"the token would go to {address} in plaintext, and anyone on the network could read and use it: reach the "
            "server by TLS (credentials=, on the command line --tls or --tls-ca), or on a loopback address"
        )
    return (*metadata, (TOKEN_KEY, bearer(token)))
