"""Counts of what processes hold, read from outside: descriptors, sockets, threads, tasks, memory,
pages."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import psutil
from prometheus_client.parser import text_string_to_metric_families

from slipstream.cli.local import LocalServices
from slipstream.telemetry import instruments
from slipstream.wire.v1 import model_pb2, model_pb2_grpc

_POLL_SECONDS = 0.25
_QUIET_SECONDS = 1.0
_GRPC_POOLS = ("event_engine", "grpc_global_tim")
"""Names of grpc's own threads, in the fifteen letters that the kernel stores."""


@dataclass(frozen=True, slots=True)
class Count:
    """Counts of one process."""

    descriptors: int
    sockets: int
    threads: int
    """Number of threads, except those of grpc's pools, which changes at any time."""
    tasks: int
    """Number of tasks of its event loop."""
    pages: int
    """Number of pages held by open sequences; 0 for an orchestrator."""
    sequences: int
    """Number of open sequences of a model service, or of an orchestrator's sessions."""

    def over(self, other: Count) -> dict[str, int]:
        """Return the excess of this count over another, by resource."""
        before, now = asdict(other), asdict(self)
        return {name: now[name] - before[name] for name in now if now[name] > before[name]}


class Census:
    """Counts the three processes of a served pair. Their metrics are at ``metrics`` by name."""

    def __init__(self, local: LocalServices, metrics: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._processes = {name: psutil.Process(each.process.pid) for name, each in local.services.items()}
        self._models = {"verifier": local.verifier_address, "draft": local.draft_address}

    def take(self) -> dict[str, Count]:
        """Return the current counts."""
        return {name: self._count(name, process) for name, process in self._processes.items()}

    def memory(self) -> dict[str, int]:
        """Return the resident bytes."""
        return {name: process.memory_info().rss for name, process in self._processes.items()}

    def settled(self, patience: float) -> dict[str, Count]:
        """Return the counts once no page is held, no sequence is open, and nothing has changed for
        a second; or after ``patience`` seconds."""
        deadline = time.monotonic() + patience
        last, since = self.take(), time.monotonic()
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            now = self.take()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > _QUIET_SECONDS and not any(
                each.pages + each.sequences for each in now.values()
            ):
                break
        return last

    def back_at(self, before: Mapping[str, Count], patience: float) -> dict[str, dict[str, int]]:
        """Wait until no count exceeds the earlier one. After ``patience`` seconds, return the least
        excess over all looks, by process. So only what stays counts, not what a single look caught
        at work."""
        deadline = time.monotonic() + patience
        stays = {name: count.over(before[name]) for name, count in self.take().items()}
        while any(stays.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            for name, count in self.take().items():
                more = count.over(before[name])
                stays[name] = {each: min(least, more[each]) for each, least in stays[name].items() if each in more}
        return {name: more for name, more in stays.items() if more}

    def _count(self, name: str, process: psutil.Process) -> Count:
        pages = sequences = 0
        if name in self._models:
            with grpc.insecure_channel(self._models[name]) as channel:
                load = model_pb2_grpc.ModelServiceStub(channel).GetLoad(model_pb2.GetLoadRequest(), timeout=30).load
                pages, sequences = load.held_page_count, load.sequence_count
            time.sleep(0.05)  # the call just answered has tasks, that end
        values = self._values(name)
        if name not in self._models:
            sequences = int(values[instruments.SESSIONS.exposed_name])
        time.sleep(0.05)  # what was asked just now has a connection, and of metrics a thread, that end
        return Count(
            descriptors=process.num_fds(),
            sockets=len(process.net_connections()),
            threads=_thread_count(process.pid),
            tasks=int(values[instruments.ASYNCIO_TASKS.exposed_name]),
            pages=pages,
            sequences=sequences,
        )

    def _values(self, name: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self._metrics[name]}/metrics", timeout=30) as response:
            text = response.read().decode()
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def _thread_count(pid: int) -> int:
    count = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has ended since
            count += (thread / "comm").read_text().strip() not in _GRPC_POOLS
    return count
