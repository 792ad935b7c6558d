"""Flags that ``slipstream up`` passes on to the services that it starts. Their values go unchanged:
a service says itself what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipstream.cli.listen_addresses import port_after

_MODEL_SERVICES = ("verifier", "draft")

TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    "store": ("orchestrator",),
    "access": ("orchestrator",),
    "kv_memory_mib": _MODEL_SERVICES,
}
"""Services that take a setting, by its name in their settings."""


@dataclass(frozen=True, slots=True)
class ServiceFlags:
    """The flags of one ``slipstream up``."""

    insecure: bool
    """Allow addresses that are not on loopback, without TLS."""
    settings: Mapping[str, str]
    """Values of settings in `TAKEN_BY`; an empty one is not passed on."""
    metrics: Mapping[str, str]
    """Address of each service's metrics. Empty: none are served."""

    def of(self, service: str) -> list[str]:
        """Return the flags of one service."""
        flags = ["--insecure"] if self.insecure else []
        for name, value in self.settings.items():
            if value and service in TAKEN_BY[name]:
                flags += [f"--{name.replace('_', '-')}", value]
        return [*flags, "--metrics-address", self.metrics[service]] if self.metrics else flags


def metrics_addresses(address: str, services: Iterable[str]) -> dict[str, str]:
    """Return the address of each service's metrics: the first one has the given address, and the
    others the next ports. An empty address: none."""
    return {service: port_after(address, place) for place, service in enumerate(services)} if address else {}
