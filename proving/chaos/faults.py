"""The faults of `proving.chaos`, one class each. A fault strikes, waits, and leaves the system
whole."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from proving.chaos.clock import can_be_set
from proving.proxy import Fault as ProxyFault
from proving.proxy import Proxy, RunItem, RunResult
from proving.system import System

FULL_SECONDS, STOPPED_SECONDS, PARTED_SECONDS = 2.0, 4.0, 4.0
"""Seconds that a disk stays full, a process stopped, or a network partitioned. The latter two last
longer than a deadline and a lease."""

LOOK_SECONDS = 1.2
"""Seconds within which every process has read its certificates again."""

DEADLINES = ("--session-lease-seconds", "1.5", "--draft-deadline-seconds", "1", "--verifier-deadline-seconds", "1.5")
"""Deadlines and leases of the tested orchestrators."""


@dataclass(slots=True)
class Scene:
    """The system that a fault acts on."""

    system: System
    rng: random.Random
    other_draft: Path

    def orchestrators(self) -> list[psutil.Process]:
        """Processes that hold sessions."""
        parent = psutil.Process(self.system.pid("orchestrator"))
        return [child for child in parent.children() if "spawn_main" in " ".join(_arguments(child))]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has ended since; a zombie is one too
        return []


class Fault:
    """One kind of fault."""

    name: str

    def strike(self, scene: Scene) -> None:
        """Cause the fault, and end it."""
        raise NotImplementedError


class OrchestratorKilled(Fault):
    """SIGKILL to one of the processes behind the port."""

    name = "one of three orchestrators killed"

    def strike(self, scene: Scene) -> None:
        scene.rng.choice(scene.orchestrators()).kill()


class AllOrchestratorsKilled(Fault):
    """SIGKILL to the process that started the orchestrators, which ends them all."""

    name = "all orchestrators killed"

    def strike(self, scene: Scene) -> None:
        children = scene.orchestrators()
        scene.system.kill("orchestrator")
        psutil.wait_procs(children, timeout=30)
        scene.system.start_orchestrator()
        scene.system.wait_for("orchestrator")


class OrchestratorStopped(Fault):
    """SIGSTOP to one orchestrator for longer than its lease. The others take over its sessions, and
    it notices."""

    name = "one of three orchestrators stopped"

    def strike(self, scene: Scene) -> None:
        with _stopped(scene.rng.choice(scene.orchestrators())):
            time.sleep(STOPPED_SECONDS)


class Killed(Fault):
    """SIGKILL to a model service, and a new process at its address."""

    def __init__(self, role: str, start: Callable[[Scene], str]) -> None:
        self.name = f"{role} killed"
        self._start = start

    def strike(self, scene: Scene) -> None:
        scene.system.wait_for(self._start(scene))


class Stopped(Fault):
    """SIGSTOP to a model service for longer than its deadline."""

    def __init__(self, role: str, choose: Callable[[Scene], str]) -> None:
        self.name = f"{role} stopped"
        self._choose = choose

    def strike(self, scene: Scene) -> None:
        with _stopped(psutil.Process(scene.system.pid(self._choose(scene)))):
            time.sleep(STOPPED_SECONDS)


class DiskFull(Fault):
    """No file of the orchestrators can grow, so the store cannot be written and new turns are
    refused."""

    name = "disk full under the store"

    def strike(self, scene: Scene) -> None:
        processes = scene.orchestrators()
        for process in processes:
            _limit_files(process, 1)
        time.sleep(FULL_SECONDS)
        for process in processes:
            _limit_files(process, resource.RLIM_INFINITY)


class Parted(Fault):
    """A service's messages are lost in one direction or both. The connection stays open, and no
    message arrives."""

    def __init__(self, role: str, *, items: bool, results: bool) -> None:
        way = "both ways" if items and results else "on the way there" if items else "on the way back"
        self.name = f"{role}'s messages lost {way}"
        self._role = role
        self._lost = _Lost(items=items, results=results)

    def strike(self, scene: Scene) -> None:
        proxy = scene.system.draft_proxy if self._role == "draft" else scene.rng.choice(scene.system.verifier_proxies)
        assert proxy is not None
        with _faulty(proxy, self._lost):
            time.sleep(PARTED_SECONDS)


class StreamsDropped(Fault):
    """All streams to all services end at the same moment."""

    name = "all streams dropped"

    def strike(self, scene: Scene) -> None:
        proxies = [*scene.system.verifier_proxies, *([scene.system.draft_proxy] if scene.system.draft_proxy else [])]
        for proxy in proxies:
            proxy.faults = [_Drops()]
        time.sleep(0.2)
        for proxy in proxies:
            proxy.faults = []


class DraftReplaced(Fault):
    """A different model replaces the draft under the turns, and later the first one comes back."""

    name = "draft replaced by another model"

    def strike(self, scene: Scene) -> None:
        for model in (scene.other_draft, None):
            scene.system.kill("draft")
            scene.system.start_draft(model)
            scene.system.wait_for("draft")
            time.sleep(1.0)


class CertificatesRotated(Fault):
    """A new authority certifies all peers, so every connection has to be opened again."""

    name = "certificates rotated"

    def strike(self, scene: Scene) -> None:
        assert scene.system.certified is not None
        scene.system.certified.rotate(LOOK_SECONDS)
        time.sleep(LOOK_SECONDS)
        scene.system.cut_connections()


class ClocksStepped(Fault):
    """The wall clock of all processes is set an hour ahead, and then an hour behind."""

    name = "clocks stepped"

    def strike(self, scene: Scene) -> None:
        assert scene.system.clock is not None
        for hours in (1, -1, 0):
            scene.system.clock.set(hours * 3600)
            time.sleep(1.0)


class _Lost(ProxyFault):
    def __init__(self, *, items: bool, results: bool) -> None:
        self._items, self._results = items, results

    def items(self, items: list[Any]) -> list[Any]:
        return [] if self._items else items

    def results(self, results: list[Any]) -> tuple[list[Any], list[Any]]:
        return ([] if self._results else results), []

    def run_items(self, items: list[RunItem]) -> list[RunItem]:
        return self.items(items)

    def run_results(self, results: list[RunResult]) -> tuple[list[RunResult], list[RunItem]]:
        return self.results(results)


class _Drops(ProxyFault):
    def breaks(self, *, has_runs: bool) -> bool:
        return True


@contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextmanager
def _faulty(proxy: Proxy, fault: ProxyFault) -> Iterator[None]:
    proxy.faults = [fault]
    try:
        yield
    finally:
        proxy.faults = []


def _limit_files(process: psutil.Process, size: int) -> None:
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


def _a_verifier(scene: Scene) -> str:
    return f"verifier {scene.rng.randrange(scene.system.setup.verifier_count)}"


def _kill_verifier(scene: Scene) -> str:
    name = _a_verifier(scene)
    scene.system.kill(name)
    scene.system.start_verifier(int(name.rpartition(" ")[2]))
    return name


def _kill_draft(scene: Scene) -> str:
    scene.system.kill("draft")
    scene.system.start_draft()
    return "draft"


ALL: Sequence[Fault] = (
    OrchestratorKilled(),
    AllOrchestratorsKilled(),
    OrchestratorStopped(),
    Killed("a verifier", _kill_verifier),
    Killed("the draft", _kill_draft),
    Stopped("a verifier", _a_verifier),
    Stopped("the draft", lambda scene: "draft"),
    DiskFull(),
    Parted("verifier", items=True, results=False),
    Parted("verifier", items=False, results=True),
    Parted("verifier", items=True, results=True),
    Parted("draft", items=True, results=False),
    Parted("draft", items=False, results=True),
    StreamsDropped(),
    DraftReplaced(),
    CertificatesRotated(),
    *([ClocksStepped()] if can_be_set() else []),
)
