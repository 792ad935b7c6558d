"""A service in a process of its own: started, waited for, and stopped."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.errors import SlipstreamError
from slipstream.interpreter import module_command
from slipstream.reasons import Reason
from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.stages import last_stage, remark

_POLL_SECONDS = 0.05
START_SECONDS = 300.0
"""A large model takes minutes to load, and a small one on a busy machine as long."""
_ASK_SECONDS = 1.0
_QUIET_SECONDS = 1.0
"""A start that takes no longer is not worth a line."""


class ServiceFailedError(SlipstreamError):
    """A service ended or did not become healthy."""

    reason = Reason.SERVICE_FAILED


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

    def wait_until_healthy(self, timeout: float = START_SECONDS) -> None:
        """Poll the health service. ServiceFailedError with the service's last words if it ends or
        time runs out."""
        wait_until_healthy([self], timeout)

    def health(self, stack: ExitStack) -> Callable[[], bool]:
        """Return a function that tells whether the service serves, until the stack is closed."""
        stub = health_pb2_grpc.HealthStub(stack.enter_context(self.connect(self.address)))

        def is_serving() -> bool:
            try:
                status = stub.Check(health_pb2.HealthCheckRequest(), timeout=_ASK_SECONDS).status  # type: ignore[attr-defined]
            except grpc.RpcError:
                return False
            return bool(status == health_pb2.HealthCheckResponse.SERVING)

        return is_serving

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

    def remark(self) -> str:
        """Return what the user should know of a service that serves; usually empty."""
        return remark(self._lines())

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
        waiting = {service: service.health(stack) for service in services}
        while True:
            for service in services:
                if service.process.poll() is not None:
                    raise ServiceFailedError(service.last_words())
            waiting = {service: is_serving for service, is_serving in waiting.items() if not is_serving()}
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
