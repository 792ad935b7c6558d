"""Where plaintext may go unasked: to addresses whose packets never leave this machine."""

from __future__ import annotations

import ipaddress

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

_LOCAL_SCHEMES = ("unix:", "unix-abstract:")
_IP_SCHEMES = ("ipv4:", "ipv6:", "dns:")


class PlaintextError(SlipstreamError):
    """Plaintext would leave this machine, and nobody has asked for that."""

    reason = Reason.PLAINTEXT


def stays_here(address: str) -> bool:
    """Whether what is said at an address of gRPC's never leaves this machine: loopback, and sockets
    that are files.

    A name other than localhost may mean another machine tomorrow, whatever it means now.
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
