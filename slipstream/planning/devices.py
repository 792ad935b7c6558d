"""Devices by name, and what ``--gpus`` says. Pure but for the table of devices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.planning.errors import PlanError

CPU = "cpu"
MOST_DEVICES = 1024
_ITEM = re.compile(r"(?:(\d{1,6})\s*[x*]\s*)?([a-z][a-z0-9-]*)(?::(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device."""

    name: str
    says: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second of its memory."""
    flops: float
    """Dense bfloat16 operations a second."""
    link: float
    """Bytes a second to another device of the node, in each direction."""
    source: str

    @property
    def is_cpu(self) -> bool:
        """Return whether it is the processors of a machine."""
        return self.name == CPU


@dataclass(frozen=True, slots=True)
class Group:
    """A number of devices of one kind, in one node."""

    device: Device
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.device.name}"


@dataclass(frozen=True, slots=True)
class CpuFigures:
    """Figures of a machine whose processors are planned with: no table can know them."""

    memory: float | None = None
    """GB."""
    bandwidth: float | None = None
    """GB/s."""
    tflops: float = 1.0


def known_devices() -> dict[str, Device]:
    """Return all devices by name."""
    content = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
    return {name: _device(name, **entry) for name, entry in content.items()}


def groups_of(text: str, cpu: CpuFigures) -> Sequence[Group]:
    """Return the devices of a text such as ``4xh100,1xl4`` or ``cpu``. PlanError."""
    known = known_devices()
    if cpu.memory is not None and cpu.bandwidth is not None:
        said = "the figures that were given"
        known[CPU] = _device(CPU, "processors of one machine", cpu.memory, cpu.bandwidth, cpu.tflops, 1.0, said)
    found: dict[str, int] = {}
    for item in text.lower().split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None or (match[1] and match[3]):
            raise PlanError(
                f"--gpus {text}: {item.strip()!r} is not a number and a name, such as 4xh100 or 4xh100,1xl4"
            )
        count, name = int(match[1] or match[3] or 1), match[2]
        if name == CPU and CPU not in known:
            raise PlanError("--gpus cpu needs the machine's --cpu-memory in GB and --cpu-bandwidth in GB/s")
        if name not in known:
            raise PlanError(f"--gpus {text}: {name!r} is not known; known are {', '.join(known)} and {CPU}")
        if name == CPU and count > 1:
            raise PlanError(f"--gpus {text}: {CPU} is one machine, so no number can stand before it")
        found[name] = found.get(name, 0) + count
        if not 1 <= found[name] <= MOST_DEVICES:
            raise PlanError(f"--gpus {text}: a kind has 1 to {MOST_DEVICES} devices, not {found[name]}")
    return [Group(known[name], count) for name, count in found.items()]


def _device(name: str, says: str, memory: float, bandwidth: float, tflops: float, link: float, source: str) -> Device:
    return Device(name, says, memory * 1e9, bandwidth * 1e9, tflops * 1e12, link * 1e9, source)
