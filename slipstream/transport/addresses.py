"""Addresses that are safe for plaintext: their packets never leave this machine."""

from __future__ import annotations

import ipaddress

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

_LOCAL_SCHEMES = ("unix:", "unix-abstract:")
_IP_SCHEMES = ("ipv4:", "ipv6:", "dns:")


class PlaintextError(SlipstreamError):
    """Plaintext would leave this machine, and no setting allows that."""

    reason = Reason.PLAINTEXT


def stays_here(address: str) -> bool:
    """Return True if traffic to a gRPC address stays on this machine: loopback, or a socket file.

    A host name other than localhost counts as another machine, because it may become one.
    """
    if address.startswith(_LOCAL_SCHEMES):
        return True
    for scheme in _IP_SCHEMES:
        if address.startswith(scheme):
            address = address.removeprefix(scheme)
            if address.startswith("//"):  # dns://server/name:port
                address = address[2:].partition("/")[2]
    return all(_is_loopback(_host_of(one)) for one in address.split(","))


def _host_of(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
