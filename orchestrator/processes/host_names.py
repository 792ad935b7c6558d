"""Addresses of host names.

A name with several addresses is as many services. A name with one address is one service, which is
reached by its name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host and port, as host:port. OSError if there are none."""

_SCHEME = "dns:"
_DEADLINE_SECONDS = 5.0


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses that the system's resolver finds, of one family.

    IPv4 is preferred. A service that listens on both families is still one service.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    chosen = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    hosts = sorted({str(address[0]) for family, _, _, _, address in found if family == chosen})
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts]


class HostNames:
    """Names as host:port, with the addresses of their last lookup."""

    def __init__(self, names: Sequence[str], resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._known = {name: [name] for name in (each.removeprefix(_SCHEME).lstrip("/") for each in names)}

    @property
    def names(self) -> list[str]:
        """Return the names."""
        return list(self._known)

    def add(self, name: str) -> None:
        """Add a name. One that is there keeps its addresses."""
        self._known.setdefault(name, [name])

    def remove(self, name: str) -> list[str]:
        """Remove a name. Return the addresses that no other name has."""
        gone = self._known.pop(name, [])
        return [address for address in gone if address not in self.addresses]

    def name_of(self, address: str) -> str:
        """Return the name that an address was found for; the address itself if there is none."""
        return next((name for name, known in self._known.items() if address in known), address)

    @property
    def may_change(self) -> bool:
        """Return True if at least one of the names has to be looked up."""
        return any(map(_is_looked_up, self._known))

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of all names, each once."""
        return list(dict.fromkeys(address for known in self._known.values() for address in known))

    def host_of(self, address: str) -> str:
        """Return the host name that an address was found for, which its certificate names. Empty if
        the address is its own name."""
        for name, known in self._known.items():
            if address in known and address != name:
                return name.rpartition(":")[0]
        return ""

    async def resolve_all(self) -> None:
        """Look up all names. A name that cannot be found now keeps its last addresses. Names may be
        added and removed meanwhile."""
        for name in [*filter(_is_looked_up, self._known)]:
            host, _, port = name.rpartition(":")
            try:
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    found = await self._resolve(host, int(port))
            except (
                OSError,
                ValueError,
                OverflowError,
                TimeoutError,
            ) as error:  # a name may be invalid, a port too large
                log.debug("%s cannot be looked up: %s", name, error or "no answer")
                continue
            known = self._known.get(name)  # None: it was removed meanwhile
            # once a name had several addresses, its addresses count, even a single one
            if known is not None and (len(found) > 1 or known != [name]):
                self._known[name] = found


def _is_looked_up(name: str) -> bool:
    """Return True for a host name of another machine.

    Names of this machine have an address of each family, and all are the same services.
    """
    host, _, port = name.rpartition(":")
    if not port.isdecimal() or not host or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False
