"""Names by which a gateway on loopback may be reached.

A website can let its own name point to 127.0.0.1 (DNS rebinding). A browser then takes the gateway
for a part of that website, which may read every answer. But the browser sends the website's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from gateway.errors import ApiError
from slipstream.transport.addresses import stays_here


class Hosts:
    """The names that requests may be sent to."""

    def __init__(self, address: str, allowed: Iterable[str]) -> None:
        """``address`` is the gateway's own. ``allowed`` are names besides those of loopback, or
        ``any``. On other addresses than loopback all names count if none are given."""
        given = {name.lower() for name in allowed}
        self._checks = "any" not in given and (bool(given) or stays_here(address))
        self._allowed = {"localhost", *given}

    def check(self, host: str) -> None:
        """Refuse a request by the name in its header ``host``: ApiError."""
        name = _without_port(host).lower()
        if not self._checks or name in self._allowed or _is_loopback(name):
            return
        message = (
            f"a website may have sent this request, since it is for {name!r}; if that is a name of this gateway, or of a proxy "
            "in front, give it to the gateway with --allowed-hosts"
        )
        raise ApiError(421, message, code="host_not_allowed")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
