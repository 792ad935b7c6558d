"""Settings of how a service listens."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from slipstream.transport.certificates import TlsFiles, server_credentials
from slipstream.transport.listening import Listening, refuse_plaintext
from slipstream.transport.reloading import FileError


class ListenSettings(BaseSettings):
    """Listening address, TLS and administration of a service."""

    address: str = Field(description="host:port to listen on. Port 0 picks a free port")
    tls_certificate: str = Field(
        "",
        description="PEM file with this service's certificate chain. Empty: plaintext. The file is read again when it "
        "changes",
    )
    tls_key: str = Field("", description="PEM file with the key of --tls-certificate")
    tls_client_ca: str = Field(
        "",
        description="PEM file with certificate authorities. With it, callers have to show a certificate of one of these "
        "authorities",
    )
    insecure: bool = Field(
        False,
        description="allow plaintext on addresses that are not loopback. Use it only on a private network: anyone on it can "
        "read the traffic",
    )
    admin_address: str = Field(
        "",
        description="host:port that serves channelz, reflection and health in plaintext. Empty: they are served on --address "
        "if that is loopback, else not at all. Several orchestrator processes take this port and the next ones",
    )

    def listening(self) -> Listening:
        """Return how the server has to listen. FileError, PlaintextError."""
        files = TlsFiles(
            self.tls_certificate, self.tls_key, self.tls_client_ca, flag="--tls", authority_flag="--tls-client-ca"
        )
        files.check()
        if self.tls_client_ca and not self.tls_certificate:
            raise FileError("--tls-certificate and --tls-key are needed beside --tls-client-ca")
        if not self.insecure:
            refuse_plaintext(self.address, self.admin_address, by_tls=bool(self.tls_certificate))
        return Listening(server_credentials(files) if self.tls_certificate else None, admin_address=self.admin_address)
