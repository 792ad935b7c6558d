"""The three services as three processes on this machine: started, waited for, and surely
stopped."""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.cli.model_arguments import ARITHMETIC, EMBEDDED
from slipstream.errors import SlipstreamError
from slipstream.interpreter import module_command
from slipstream.reasons import Reason
from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.stages import last_stage

_POLL_SECONDS = 0.05
_START_SECONDS = 300.0
"""A large model takes minutes to load, and a small one on a busy machine as long."""
_QUIET_SECONDS = 1.0
"""A start that takes no longer is not worth a line."""
_PORTS = range(18000, 30000)
"""Below what the kernel gives to outgoing connections: a service that is started again must find
its port free."""
_walk = itertools.cycle(_PORTS)
"""From somewhere on, each once before any again: a port drawn by lot may be one that a service
which starts has been told, and binds only seconds later."""
next(itertools.islice(_walk, random.randrange(len(_PORTS)), None))


_WEIGHTS = (".safetensors", ".bin")
_SMALL_BYTES = 2**26


class ServiceFailedError(SlipstreamError):
    """A service ended or did not become healthy."""

    reason = Reason.SERVICE_FAILED


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Settings of a pair. ``target_flags`` and ``draft_flags`` go to the services unchanged; an
    empty draft means none."""

    target: str = "embedded"
    draft: str = "embedded"
    device: str = "cpu"
    dtype: str = "bfloat16"
    target_flags: Sequence[str] = ()
    draft_flags: Sequence[str] = ()
    orchestrator_flags: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    store: str = "memory"
    """Store of the orchestrator's sessions; empty for its default."""


@functools.cache
def _claims() -> int:
    """Open the file whose byte N a process locks, until it ends, when it takes port N: a second
    process then takes another."""
    path = Path(tempfile.gettempdir(), f"slipstream-ports-{os.getuid()}")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def free_address() -> str:
    """Return a loopback address whose port is free, and is given to no other process that asks
    here."""
    claims = _claims()
    while True:
        address = ("127.0.0.1", next(_walk))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, address[1])
                probe.bind(address)
            except OSError:
                continue
            return f"127.0.0.1:{address[1]}"


class ServiceProcess(Protocol):
    """Methods of a service's process, as `subprocess.Popen` has them."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status, negative if a signal ended it; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. subprocess.TimeoutExpired."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal; do nothing once the process has ended."""
        ...

    def terminate(self) -> None:
        """SIGTERM."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


def execute(module: str, flags: Sequence[str], log: Path, environment: Mapping[str, str]) -> ServiceProcess:
    """Run a module in a process of its own. ``environment``: all of it. The process gets SIGTERM if
    we die without stopping it, and, in Linux's view of a parent, already when the thread that
    started it ends."""
    with log.open("w") as output:
        return subprocess.Popen(
            module_command("slipstream.cli.child", str(os.getpid()), module, *flags),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us: we drain, then stop them
            env=dict(environment),
        )


class Service:
    """One service in a process of its own."""

    start_process = staticmethod(execute)
    """Starts it."""

    def __init__(
        self,
        name: str,
        module: str,
        address: str,
        flags: Sequence[str],
        environment: dict[str, str],
        connect: Callable[[str], grpc.Channel] = lambda address: grpc.insecure_channel(
            address, options=CHANNEL_OPTIONS
        ),
    ) -> None:
        """``connect`` opens a channel to its address, to ask how it is."""
        self.name = name
        self.address = address
        self.connect = connect
        self.log = Path(tempfile.mkstemp(prefix=f"slipstream-{name}-", suffix=".log")[1])
        self.process = self.start_process(
            module, ["--address", address, *flags], self.log, {**os.environ, **environment}
        )

    def wait_until_healthy(self, timeout: float = _START_SECONDS) -> None:
        """Poll the health service. ServiceFailedError with the service's last words if it ends or
        time runs out."""
        wait_until_healthy([self], timeout)

    def last_words(self) -> str:
        """Return why the service ended: its last line of a reason, or the end of its log without
        one."""
        reasons = [line for line in self._lines() if line.startswith(f"{self.name}: ")]
        return reasons[-1] if reasons else f"the {self.name} service ended:\n{self.log_tail()}"

    def log_tail(self, line_count: int = 12) -> str:
        """The last lines the service wrote."""
        return "\n".join(f"  {line}" for line in self._lines()[-line_count:])

    def stage(self) -> str:
        """Return what the service does before it serves, and how far it is, by its log."""
        return last_stage(self._lines()) or "starting"

    def _lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def stop(self, patience: float = 40.0) -> None:
        """SIGTERM, then SIGKILL if it takes too long; returns when the process is gone."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.unlink(missing_ok=True)


def wait_until_healthy(
    services: Sequence[Service], timeout: float, report: Callable[[str], None] = lambda _: None
) -> None:
    """Poll several services until each is healthy. ServiceFailedError as soon as one ends, or when
    time runs out. ``report`` is told the stage of the first one that is not healthy, whenever that
    changes."""
    begun = time.monotonic()
    deadline = begun + timeout
    reported = ""
    with ExitStack() as stack:
        waiting = {service: _health_of(service, stack) for service in services}
        while True:
            for service in services:
                if service.process.poll() is not None:
                    raise ServiceFailedError(service.last_words())
            waiting = {service: stub for service, stub in waiting.items() if not _is_serving(stub)}
            if not waiting:
                return
            first = next(iter(waiting))
            stage = f"{first.name}: {first.stage()}"
            if stage != reported and time.monotonic() >= begun + _QUIET_SECONDS:
                report(reported := stage)
            if time.monotonic() >= deadline:
                raise ServiceFailedError(
                    f"the {first.name} service is not healthy after {timeout:g} s:\n{first.log_tail()}"
                )
            time.sleep(_POLL_SECONDS)


def _health_of(service: Service, stack: ExitStack) -> health_pb2_grpc.HealthStub:
    return health_pb2_grpc.HealthStub(stack.enter_context(service.connect(service.address)))


def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    try:
        status = stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0).status  # type: ignore[attr-defined]
    except grpc.RpcError:
        return False
    return bool(status == health_pb2.HealthCheckResponse.SERVING)


def is_small(model: str) -> bool:
    """Return True if a draft's step reads at most what caches hold, by the bytes of its weights if
    they lie on this machine."""
    path = Path(model).expanduser()
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir() if file.suffix in _WEIGHTS) <= _SMALL_BYTES
    if path.is_file():
        return path.stat().st_size <= _SMALL_BYTES
    return model == EMBEDDED or model.startswith(ARITHMETIC)  # and else a hub id


class LocalServices:
    """Use as a context: inside it the orchestrator is healthy, after it no process is left."""

    def __init__(
        self,
        settings: PairSettings,
        *,
        orchestrator: str | None = None,
        verifier: str | None = None,
        draft: str | None = None,
        timeout: float = _START_SECONDS,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Addresses left out are free ones. ``report`` is told what is being waited for."""
        self.settings = settings
        self.orchestrator_address = orchestrator or free_address()
        self.verifier_address = verifier or free_address()
        self.draft_address = (draft or free_address()) if settings.draft else ""
        self.services: dict[str, Service] = {}
        self._timeout = timeout
        self._report = report

    def __enter__(self) -> LocalServices:
        try:
            self.start_verifier()
            if self.draft_address:
                self.start_draft()
            self.start_orchestrator()
            places = [f"{name} at {service.address}" for name, service in self.services.items()]
            self._report(f"waiting for {', '.join(places)}")
            wait_until_healthy(list(self.services.values()), self._timeout, self._report)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_verifier(self) -> Service:
        """Start, or start again, the verifier."""
        settings = self.settings
        flags = [*self._model_flags(settings.target, settings.dtype), *settings.target_flags]
        return self._start("verifier", "verifier_service", self.verifier_address, flags)

    def start_draft(self) -> Service:
        """Start, or start again, the draft."""
        settings = self.settings
        # Its target's threads want the cores too: one more pays where a step reads more than a
        # core's caches hold.
        threads = ["--threads", "1"] if settings.device == "cpu" and is_small(settings.draft) else []
        flags = [*self._model_flags(settings.draft, settings.dtype), *threads, *settings.draft_flags]
        return self._start("draft", "draft_service", self.draft_address, flags)

    def start_orchestrator(self) -> Service:
        """Start the orchestrator."""
        flags = ["--verifier", self.verifier_address, "--draft", self.draft_address]
        flags += ["--store", self.settings.store] if self.settings.store else []
        return self._start(
            "orchestrator", "orchestrator", self.orchestrator_address, [*flags, *self.settings.orchestrator_flags]
        )

    def stop(self) -> None:
        """Stop them all, the orchestrator first, so that running turns can drain."""
        held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for name in ("orchestrator", "draft", "verifier"):
                if name in self.services:
                    self.services[name].stop()
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)

    def _model_flags(self, model: str, dtype: str) -> list[str]:
        return ["--model", model, "--device", self.settings.device, "--dtype", dtype]

    def _start(self, name: str, module: str, address: str, flags: Sequence[str]) -> Service:
        if name in self.services:
            self.services[name].stop()
        service = Service(name, module, address, flags, self.settings.environment)
        self.services[name] = service
        return service
