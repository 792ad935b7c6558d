"""How an orchestrator reaches others: by TLS where it was given whom to trust, with a token where
it was given one."""

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
    """Opens channels. Without ``credentials`` they are plaintext."""

    credentials: Reloaded[grpc.ChannelCredentials] | None = None
    token: Reloaded[str] | None = None
    name: str = ""
    """In the certificates of those that are reached; empty: their addresses' own."""
    insecure: bool = False
    """Whether plaintext may leave this machine."""

    def for_host(self, host: str) -> Connector:
        """For an address that was found for a host's name, whose certificate says that name."""
        return replace(self, name=self.name or host)

    def open_peer(self, address: str) -> grpc.aio.Channel:
        """To a draft or verifier, which is shown the token. What it sends that is no message, or
        too large, ends its call."""
        return ParsedChannel(self._open(address, self.credentials, self.token, MAX_ANSWER_BYTES))

    def open_orchestrator(self, address: str) -> grpc.aio.Channel:
        """To another orchestrator process. The authorization of what is passed on is its client's
        own: PlaintextError where strangers could read it."""
        if address.startswith("unix:"):
            return open_channel(address)
        if self.credentials is None and not self.insecure and not stays_here(address):
            raise PlaintextError(
                f"the orchestrator at {address} would be told in plaintext what clients say: start both with --peer-tls-ca, or "
                "with --insecure if that is wanted"
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
    """PlaintextError if one of them is not on this machine: the peer token would go there in
    plaintext."""
    for address in addresses:
        if not stays_here(address):
            raise PlaintextError(
                f"--peer-token-file would go to {address} in plaintext, where whoever is on the network can read and use it: "
                "reach peers on loopback addresses, or by TLS (--peer-tls-ca), or give --insecure if that is wanted"
            )
