"""Channels from an orchestrator to its peers and to other orchestrators, by TLS and with a token if
those are configured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import grpc

from slipstream.agreed import MAX_ANSWER_BYTES
from slipstream.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from slipstream.rpc.parsing import ParsedChannel
from slipstream.rpc.renewing_channel import RenewingChannel
from slipstream.transport.addresses import PlaintextError, stays_here
from slipstream.transport.reloading import Reloaded


@dataclass(frozen=True, slots=True)
class Connector:
    """Opener of channels. Without ``credentials`` they are plaintext."""

    credentials: Reloaded[grpc.ChannelCredentials] | None = None
    token: Reloaded[str] | None = None
    name: str = ""
    """Name in the certificates of the peers; empty: the name in their addresses."""
    insecure: bool = False
    """True if plaintext may leave this machine."""

    def for_host(self, host: str) -> Connector:
        """Return a connector for addresses of a host name, which the certificate names."""
        return replace(self, name=self.name or host)

    def open_peer(self, address: str) -> grpc.aio.Channel:
        """Return a channel to a draft or verifier, with the token. An invalid or too large answer
        ends its call."""
        return ParsedChannel(self._open(address, self.credentials, self.token, MAX_ANSWER_BYTES))

    def open_orchestrator(self, address: str) -> grpc.aio.Channel:
        """Return a channel to another orchestrator process, for forwarded calls.

        PlaintextError if others could read the client's authorization on the way.
        """
        if address.startswith("unix:"):
            return open_channel(address)
        if self.credentials is None and not self.insecure and not stays_here(address):
            raise PlaintextError(
                f"the orchestrator at {address} would be told in plaintext what clients say: set --peer-tls-ca for both, or "
                "allow plaintext with --insecure"
            )
        return self._open(address, self.credentials, None, MAX_MESSAGE_BYTES)

    def _open(
        self,
        address: str,
        credentials: Reloaded[grpc.ChannelCredentials] | None,
        token: Reloaded[str] | None,
        max_receive_bytes: int,
    ) -> grpc.aio.Channel:
        if credentials is None and token is None:
            return open_channel(address, max_receive_bytes=max_receive_bytes)
        return RenewingChannel(address, credentials, token, self.name, max_receive_bytes)


PLAINTEXT = Connector()


def refuse_plaintext_token(addresses: list[str]) -> None:
    """Raise PlaintextError if an address is on another machine: the peer token would go there in
    plaintext."""
    for address in addresses:
        if not stays_here(address):
            raise PlaintextError(
                f"--peer-token-file would go to {address} in plaintext, where anyone on the network can read and use it: "
                "reach peers on loopback addresses or by TLS (--peer-tls-ca), or allow plaintext with --insecure"
            )
