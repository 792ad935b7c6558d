"""Processors that a model's threads compute on. Two models with processors in common may slow
each other down."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Id of the running kernel. All containers on a machine share the kernel and its processors."""


@dataclass(frozen=True, slots=True)
class Processors:
    """Processors of one model, as far as its service can tell. The default is unknown, and
    conflicts with no other model."""

    machine: str = ""
    """Id of the running kernel, or of one accelerator; all processes on it give the same. Empty
    if it is unknown, or nothing computes."""
    numbers: frozenset[int] = frozenset()
    """Processors that the threads may run on."""
    thread_count: int = 0
    """Number of threads that compute at a time."""

    def are_short_beside(self, other: Processors) -> bool:
        """Return whether the threads of both models wait for each other when both compute at
        once. That is so if they share processors, and both together have fewer processors than
        threads."""
        if not self.machine or self.machine != other.machine or self.numbers.isdisjoint(other.numbers):
            return False
        return self.thread_count + other.thread_count > len(self.numbers | other.numbers)


def own_processors(thread_count: int) -> Processors:
    """Return this process's processors. ``thread_count`` of its threads compute; 0 if its model
    computes elsewhere. Unknown if the system does not tell."""
    try:
        boot = _BOOT_ID.read_bytes()
        numbers = os.sched_getaffinity(0)
    except (OSError, AttributeError):  # no Linux
        return Processors()
    if not thread_count:
        return Processors()
    return Processors(_name_of(boot), frozenset(numbers), thread_count)


def device_processor(identity: str) -> Processors:
    """Return an accelerator as one processor: it computes for one process at a time.
    ``identity`` is the accelerator's own, the same in all processes."""
    return Processors(_name_of(identity.encode()), frozenset({0}), 1)


def _name_of(machine: bytes) -> str:
    return hashlib.sha256(b"slipstream" + machine).hexdigest()[:16]
