"""Listening options of a server: TLS or plaintext, the token of callers, the admin address."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from slipstream.transport.addresses import PlaintextError, stays_here
from slipstream.transport.reloading import Reloaded


@dataclass(frozen=True, slots=True)
class Listening:
    """Listening options of a server: TLS if there are ``credentials``, else plaintext.

    Callers have to show the ``token`` if there is one.
    """

    credentials: grpc.ServerCredentials | None = None
    token: Reloaded[str] | None = None
    admin_address: str = ""
    """Address of channelz and reflection, in plaintext. Empty: the server's own port if that is
    loopback, else they are not served."""


def refuse_plaintext(address: str, admin_address: str, *, by_tls: bool) -> None:
    """Raise PlaintextError if plaintext of a server would leave this machine."""
    if not by_tls and not stays_here(address):
        raise PlaintextError(
            f"--address {address} is not on loopback, and anyone on the network can read and change plaintext: listen on "
            "a loopback address, or set --tls-certificate and --tls-key, or allow plaintext with --insecure"
        )
    if admin_address and not stays_here(admin_address):
        raise PlaintextError(
            f"--admin-address {admin_address} is not on loopback, and anyone who reaches it can list the connected callers: "
            "choose a loopback address, or allow it with --insecure"
        )
