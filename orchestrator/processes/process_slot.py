"""Which orchestrator process this is, to itself and to the others."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from orchestrator.store.rows import OwnerRow

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
_EVERYWHERE = ("0.0.0.0", "[::]", "::", "")


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """One process among those that share a port."""

    number: int
    """From 0."""
    count: int
    directory: Path
    """Where each process has its socket file, for calls that the others pass on."""
    advertised: str = ""
    """host:port where the first of them is reached from other machines, each of the others at the
    next port; empty: none is."""

    def address(self, number: int) -> str:
        """Where a process listens for the others."""
        return f"unix:{self.directory / str(number)}"

    @property
    def own_address(self) -> str:
        """Where whoever shares the store reaches this process."""
        return numbered(self.advertised, self.number) if self.advertised else self.address(self.number)

    def advertised_port(self, shared: str) -> str:
        """Where this process listens for other machines, beside the port that all share at an
        address."""
        return f"{shared.rpartition(':')[0]}:{self.own_address.rpartition(':')[2]}"

    def sibling_address(self, address: str) -> str | None:
        """Where one of these processes listens for the others; None if what is reached at an
        address is none of them."""
        for number in range(self.count):
            if address in (self.address(number), numbered(self.advertised, number)):
                return self.address(number)
        return None

    def owns_file(self, file: str) -> bool:
        """Whether a file ends with these processes."""
        return Path(file).parent == self.directory


def numbered(address: str, number: int) -> str:
    """Where the process of this number has what the first one has at ``address``: at the next port;
    empty: nowhere."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number}" if port.isdecimal() else address


def owner_of(address: str) -> OwnerRow:
    """This process, which listens at ``address``, as an owner of sessions.

    No two living processes listen at one address of one network: who comes after another there is
    its successor.
    """
    return OwnerRow(secrets.token_hex(8), address, f"{_network()} {address}")


def address_to_reach(address: str, port: int) -> str:
    """Where others reach what listens at ``address``, whose port is known by now."""
    host, _, _ = address.rpartition(":")
    return f"{socket.gethostname() if host in _EVERYWHERE else host}:{port}"


def _network() -> str:
    """What tells this machine's addresses from those of others that look the same; loopback
    addresses all do."""
    try:
        return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"
    except OSError:  # not Linux
        return socket.gethostname()
