"""Identity and addresses of one orchestrator process among several."""

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
    """Number of this process, from 0."""
    count: int
    directory: Path
    """Folder with each process's socket file, for forwarded calls."""
    advertised: str = ""
    """host:port of the first process for other machines; the others use the next ports. Empty:
    other machines cannot reach these processes."""

    def address(self, number: int) -> str:
        """Return the address at which a process listens for forwarded calls."""
        return f"unix:{self.directory / str(number)}"

    @property
    def own_address(self) -> str:
        """Return the address at which all processes of the store reach this one."""
        return numbered(self.advertised, self.number) if self.advertised else self.address(self.number)

    def advertised_port(self, shared: str) -> str:
        """Return where this process listens for other machines, besides the ``shared`` address."""
        return f"{shared.rpartition(':')[0]}:{self.own_address.rpartition(':')[2]}"

    def sibling_address(self, address: str) -> str | None:
        """Return the socket address of the process that is known by an address. None if the address
        belongs to none of these processes."""
        for number in range(self.count):
            if address in (self.address(number), numbered(self.advertised, number)):
                return self.address(number)
        return None

    def owns_file(self, file: str) -> bool:
        """Return True if a file is deleted when these processes end."""
        return Path(file).parent == self.directory


def numbered(address: str, number: int) -> str:
    """Return the address of a numbered process: ``address`` is that of process 0, and each further
    process uses the next port. An empty address stays empty."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number}" if port.isdecimal() else address


def owner_of(address: str) -> OwnerRow:
    """Return this process, which listens at ``address``, as an owner of sessions.

    No two running processes listen at one address of one network. A later process at the same
    address is the successor of the earlier one.
    """
    return OwnerRow(secrets.token_hex(8), address, f"{_network()} {address}")


def address_to_reach(address: str, port: int) -> str:
    """Return where other machines reach a server that listens at ``address`` on this port."""
    host, _, _ = address.rpartition(":")
    return f"{socket.gethostname() if host in _EVERYWHERE else host}:{port}"


def _network() -> str:
    """Return a name of this machine's network, because loopback addresses look the same on all
    machines."""
    try:
        return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"
    except OSError:  # not Linux
        return socket.gethostname()
