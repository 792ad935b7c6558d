"""Addresses that ``slipstream serve`` listens on: a wrong or busy one is refused by its option's
name, before any service starts."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Mapping

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.transport.addresses import PlaintextError, stays_here

_MOST_PORT = 2**16 - 1
_ENCRYPTED = "start the services one by one with --tls-certificate and --tls-key"


class WrongAddressError(SlipstreamError):
    """No service can listen on an address."""

    reason = Reason.ADDRESS_IN_USE


def refuse_plaintext(addresses: Mapping[str, str], encrypted: str = _ENCRYPTED) -> None:
    """Raise PlaintextError if an address, by its option, is not on loopback. ``encrypted`` says how
    it could be."""
    for option, address in addresses.items():
        if not stays_here(address):
            raise PlaintextError(
                f"{option} {address} is not on loopback, and in plaintext anyone on the network can read and "
                f"change what is said there: choose a loopback address, or {encrypted}, or give --insecure if that is wanted"
            )


def refuse_busy(addresses: Mapping[str, str]) -> None:
    """Raise WrongAddressError if a service cannot listen on its address, by its option. Addresses
    with a scheme, such as unix:, are left to the service."""
    seen: dict[str, str] = {}
    for option, address in addresses.items():
        if address in seen:
            raise WrongAddressError(f"{seen[address]} and {option} are both {address}: give each a port of its own")
        seen[address] = option
        if address.partition(":")[0] not in ("unix", "unix-abstract", "ipv4", "ipv6", "dns"):
            _refuse_busy(option, address)


def port_after(address: str, count: int) -> str:
    """Return the address that many ports after one; unchanged if it is not host:port."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + count}" if host and port.isdecimal() else address


def metrics_addresses(address: str, services: Iterable[str]) -> dict[str, str]:
    """Return the address of each service's metrics: the first one has the given address, and the
    others the next ports. An empty address: none."""
    return {service: port_after(address, place) for place, service in enumerate(services)} if address else {}


def _refuse_busy(option: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= _MOST_PORT:
        raise WrongAddressError(f"{option} {address} is not an address: give host:port, such as 127.0.0.1:50051")
    try:
        kind, _, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        advice = f"give another {option}"
        if error.errno == errno.EADDRINUSE:
            advice = f"does slipstream serve run already? Stop what listens there, or {advice}"
        raise WrongAddressError(
            f"cannot listen on {address}: {(error.strerror or str(error)).lower()}; {advice}"
        ) from error
