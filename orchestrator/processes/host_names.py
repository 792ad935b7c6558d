"""The addresses that host names stand for: a name with several is as many services, one with a
single address is that service by its name."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to addresses as host:port. OSError if there are none."""

_SCHEME = "dns:"
_DEADLINE_SECONDS = 5.0


async def resolve(host: str, port: int) -> list[str]:
    """What the system's resolver says. Of one family, IPv4 if there is any: a service that listens
    on both is one service."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    chosen = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    hosts = sorted({str(address[0]) for family, _, _, _, address in found if family == chosen})
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts]


class HostNames:
    """Some names as host:port, and what they stood for when they were last looked up."""

    def __init__(self, names: Sequence[str], resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._known = {name: [name] for name in (each.removeprefix(_SCHEME).lstrip("/") for each in names)}

    @property
    def may_change(self) -> bool:
        """Whether one of them is a name that has to be looked up."""
        return any(map(_is_looked_up, self._known))

    @property
    def addresses(self) -> list[str]:
        """What they stand for, each once."""
        return list(dict.fromkeys(address for known in self._known.values() for address in known))

    def host_of(self, address: str) -> str:
        """The host name that an address was found for, which its certificate is made out to; empty
        if it is no other's."""
        for name, known in self._known.items():
            if address in known and address != name:
                return name.rpartition(":")[0]
        return ""

    async def resolve_all(self) -> None:
        """Look them up. One that cannot be found just now stands for what it stood for."""
        for name in filter(_is_looked_up, self._known):
            host, _, port = name.rpartition(":")
            try:
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    found = await self._resolve(host, int(port))
            except (OSError, ValueError, OverflowError, TimeoutError) as error:  # a name can be none, a port too large
                log.debug("%s cannot be looked up: %s", name, error or "no answer")
                continue
            if len(found) > 1 or self._known[name] != [
                name
            ]:  # what was several stays their addresses, be it one by now
                self._known[name] = found


def _is_looked_up(name: str) -> bool:
    """Not an address, and not this machine: its names have an address of each family, and all are
    the same services."""
    host, _, port = name.rpartition(":")
    if not port.isdecimal() or not host or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False
