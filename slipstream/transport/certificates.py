"""Certificates and keys from PEM files.

They are checked before gRPC gets them: gRPC accepts any bytes, and then every handshake fails.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import grpc

from slipstream.transport.reloading import FileError, Reloaded, read_bytes


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of a certificate, its key and the trusted authorities; each may be empty. ``flag`` is
    the beginning of their flags' names."""

    certificate: str = ""
    key: str = ""
    authority: str = ""
    flag: str = "--tls"
    authority_flag: str = "--tls-ca"

    def check(self) -> None:
        """Raise FileError if a certificate or key is given without the other."""
        if bool(self.certificate) != bool(self.key):
            given, missing = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise FileError(f"{self.flag}-{missing} is needed beside {self.flag}-{given}")

    @property
    def paths(self) -> list[str]:
        """Return the paths that are not empty."""
        return [path for path in (self.certificate, self.key, self.authority) if path]

    def pair(self) -> tuple[bytes, bytes] | None:
        """Return the key and the certificate chain, in PEM; None if there are none. FileError, also
        if they do not belong together."""
        if not self.certificate:
            return None
        certificate = read_bytes(f"{self.flag}-certificate", self.certificate)
        key = read_bytes(f"{self.flag}-key", self.key)
        try:
            # A key that asks for a password gets an empty one: no user is there to type it.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, lambda: "")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise FileError(
                    f"{self.flag}-key {self.key} is not the key of {self.flag}-certificate {self.certificate}"
                ) from error
            raise FileError(
                f"{self.flag}-certificate {self.certificate} and {self.flag}-key {self.key} have to be a certificate and its "
                f"key in PEM, without a password: {error.reason or error}"
            ) from error
        return key, certificate

    def trusted(self) -> bytes | None:
        """Return the certificates of the trusted authorities, in PEM; None if no file is given.
        FileError."""
        if not self.authority:
            return None
        content = read_bytes(self.authority_flag, self.authority)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise FileError(f"{self.authority_flag} {self.authority} has to hold certificates in PEM") from error
        return content


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return the credentials of a server, which reads changed files again at each handshake.

    With an authority, clients have to show a certificate of it. FileError.
    """
    reloaded = Reloaded(files.paths, lambda: _server_configuration(files))
    used = first = reloaded.current

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        before, used = used, reloaded.current
        return None if used is before else used

    return grpc.dynamic_ssl_server_credentials(
        first,
        changed,  # type: ignore[arg-type]  # None is no change
        require_client_authentication=bool(files.authority),
    )


def _server_configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    pair = files.pair()
    assert pair is not None, "a server has a certificate"
    return grpc.ssl_server_certificate_configuration([pair], files.trusted())


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Return the credentials of a channel. Without an authority it trusts those that gRPC brings.
    FileError."""
    key, certificate = files.pair() or (None, None)
    return grpc.ssl_channel_credentials(files.trusted(), key, certificate)


def reloaded_channel_credentials(files: TlsFiles) -> Reloaded[grpc.ChannelCredentials]:
    """Return credentials of a channel that follow changes of the files. FileError."""
    return Reloaded(files.paths, lambda: channel_credentials(files))
