"""How a server listens: by TLS or in plaintext, for whom, and where it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from slipstream.transport.addresses import PlaintextError, stays_here
from slipstream.transport.reloading import Reloaded


@dataclass(frozen=True, slots=True)
class Listening:
    """By TLS with ``credentials``, else in plaintext. With a ``token``, what callers have to say to
    be answered."""

    credentials: grpc.ServerCredentials | None = None
    token: Reloaded[str] | None = None
    admin_address: str = ""
    """Where channelz and reflection are, in plaintext. Empty: on the server's own port if that is
    on loopback, else nowhere."""


def refuse_plaintext(address: str, admin_address: str, *, by_tls: bool) -> None:
    """PlaintextError if a server would say something in plaintext that leaves this machine."""
    if not by_tls and not stays_here(address):
        raise PlaintextError(
            f"--address {address} is not on loopback, and in plaintext whoever is on the network can read and change what is "
            "said there: listen on a loopback address, or give --tls-certificate and --tls-key, or --insecure if that is wanted"
        )
    if admin_address and not stays_here(admin_address):
        raise PlaintextError(
            f"--admin-address {admin_address} is not on loopback, and in plaintext whoever reaches it can read who is "
            "connected from where: choose a loopback address, or give --insecure if that is wanted"
        )
