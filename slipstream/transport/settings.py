"""What every service can be told of how it listens."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings

from slipstream.transport.certificates import TlsFiles, server_credentials
from slipstream.transport.listening import Listening, refuse_plaintext
from slipstream.transport.reloading import FileError


class ListenSettings(BaseSettings):
    """The flags of a service that listens."""

    address: str = Field(description="host:port to listen on; port 0 takes a free one")
    tls_certificate: str = Field(
        "", description="PEM file with this service's certificate chain; empty: plaintext. Read again when it changes"
    )
    tls_key: str = Field("", description="PEM file with that certificate's key")
    tls_client_ca: str = Field(
        "", description="PEM file with certificate authorities: callers must show a certificate of one of them"
    )
    insecure: bool = Field(
        False, description="allow plaintext on addresses that are not on loopback, for a network that is yours alone"
    )
    admin_address: str = Field(
        "",
        description="host:port where channelz, reflection and health are served in plaintext; empty: on --address if that "
        "is on loopback, else nowhere; of several processes each has the next port",
    )

    def listening(self) -> Listening:
        """What a server is to be told. FileError, PlaintextError."""
        files = TlsFiles(
            self.tls_certificate, self.tls_key, self.tls_client_ca, flag="--tls", authority_flag="--tls-client-ca"
        )
        files.check()
        if self.tls_client_ca and not self.tls_certificate:
            raise FileError("--tls-certificate and --tls-key are needed beside --tls-client-ca")
        if not self.insecure:
            refuse_plaintext(self.address, self.admin_address, by_tls=bool(self.tls_certificate))
        return Listening(server_credentials(files) if self.tls_certificate else None, admin_address=self.admin_address)
