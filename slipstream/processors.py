"""Which processors a model's threads compute on: who knows those of two models knows whether they
get in each other's way."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Of the running kernel, which all its containers share, as they share its processors."""


@dataclass(frozen=True, slots=True)
class Processors:
    """Where a model computes, as far as its service can tell. The default says nothing, and is in
    nobody's way."""

    machine: str = ""
    """The same for all processes of one running kernel, or on one accelerator; empty: not known, or
    nothing computes."""
    numbers: frozenset[int] = frozenset()
    """Processors that the threads may run on."""
    thread_count: int = 0
    """Threads that compute at a time."""

    def are_short_beside(self, other: Processors) -> bool:
        """Whether the threads of both, computing at once, would wait for one another: some
        processors are both models', and all together are fewer than the threads."""
        if not self.machine or self.machine != other.machine or self.numbers.isdisjoint(other.numbers):
            return False
        return self.thread_count + other.thread_count > len(self.numbers | other.numbers)


def own_processors(thread_count: int) -> Processors:
    """This process's, ``thread_count`` threads of which compute; 0 if a model computes elsewhere.
    Says nothing where the system does not tell."""
    try:
        boot = _BOOT_ID.read_bytes()
        numbers = os.sched_getaffinity(0)
    except (OSError, AttributeError):  # no Linux
        return Processors()
    if not thread_count:
        return Processors()
    return Processors(_name_of(boot), frozenset(numbers), thread_count)


def device_processor(identity: str) -> Processors:
    """An accelerator's, which computes for one process at a time; ``identity``: its own, whoever
    asks."""
    return Processors(_name_of(identity.encode()), frozenset({0}), 1)


def _name_of(machine: bytes) -> str:
    return hashlib.sha256(b"slipstream" + machine).hexdigest()[:16]
