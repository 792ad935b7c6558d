"""Certificates of temporary authorities, as files for the services."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import grpc
import trustme

from slipstream.client import Client
from slipstream.transport.certificates import TlsFiles, channel_credentials

NAMES = ("localhost", "127.0.0.1")
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """A certificate authority whose files are in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self._name = name
        self.file = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def issue(
        self, name: str, *names: str, expires: datetime.datetime | None = None, common_name: str | None = None
    ) -> Issued:
        """Issue a certificate for this machine, or for ``names``."""
        leaf = self._authority.issue_cert(*(names or NAMES), not_after=expires, common_name=common_name)
        issued = Issued(self._folder / f"{self._name}-{name}.crt", self._folder / f"{self._name}-{name}.key")
        issued.write(b"".join(pem.bytes() for pem in leaf.cert_chain_pems), leaf.private_key_pem.bytes())
        return issued

    def trust(self, shown: Issued | None = None) -> grpc.ChannelCredentials:
        """Return what a client needs to trust this authority, with a certificate to show or
        without."""
        key, certificate = (None, None) if shown is None else (shown.key.read_bytes(), shown.certificate.read_bytes())
        return grpc.ssl_channel_credentials(Path(self.file).read_bytes(), key, certificate)


class Issued:
    """The files of a certificate and its key."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate = certificate
        self.key = key

    def write(self, certificate: bytes, key: bytes) -> None:
        """Write the files in place, because other processes may have them open."""
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(key)

    def become(self, other: Issued) -> None:
        """Copy the content of another certificate into the same files, as a rotation does."""
        self.write(other.certificate.read_bytes(), other.key.read_bytes())

    def flags(self, prefix: str) -> list[str]:
        """Return the command line's flags that name these files to a service."""
        return [f"--{prefix}-certificate", str(self.certificate), f"--{prefix}-key", str(self.key)]


class Certified:
    """Certificates of a system's processes and clients. All can be replaced while the processes
    run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._public = Authority(folder, "public")
        self._front = self._public.issue("orchestrator")
        self._count = 0
        authority = self._new_authority()
        self._shown = authority.issue("peer")
        self._trusted = folder / "peers.pem"
        self._trusted.write_bytes(Path(authority.file).read_bytes())
        self.files = TlsFiles(str(self._shown.certificate), str(self._shown.key), str(self._trusted))
        """Files of the peers. Each peer shows a certificate of an authority and asks for one."""

    def peer_flags(self) -> list[str]:
        """Return the flags of a draft or a verifier."""
        return [*self._shown.flags("tls"), "--tls-client-ca", self.files.authority]

    def orchestrator_flags(self) -> list[str]:
        """Return the flags of an orchestrator."""
        return [*self._front.flags("tls"), *self._shown.flags("peer-tls"), "--peer-tls-ca", self.files.authority]

    def client(self, address: str, reconnect: float) -> Client:
        """Open a client of the orchestrator."""
        return Client(address, credentials=self._public.trust(), reconnect=reconnect)

    def connect(self, address: str, *, to_orchestrator: bool) -> grpc.Channel:
        """Return a channel with the current certificates."""
        credentials = self._public.trust() if to_orchestrator else channel_credentials(self.files)
        return grpc.secure_channel(address, credentials)

    def rotate(self, seconds: float) -> None:
        """Rotate certificates without an interruption. First the new authority is trusted too, then
        it alone is shown, then it alone is trusted. ``seconds`` pass between these steps, so that
        processes read the new files."""
        authority = self._new_authority()
        before, after = self._trusted.read_bytes(), Path(authority.file).read_bytes()
        self._trusted.write_bytes(before + after)
        time.sleep(seconds)
        self._shown.become(authority.issue("peer"))
        self._front.become(self._public.issue("orchestrator"))
        time.sleep(seconds)
        self._trusted.write_bytes(after)

    def _new_authority(self) -> Authority:
        self._count += 1
        return Authority(self._folder, f"peers-{self._count}")
