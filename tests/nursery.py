"""Where tests' services come from: forked from a process that has imported what they need, in place
of seconds each.

They are processes like any other, with a session, a log and an environment of their own, and a time
of day that can be set. What commands start is executed, as everywhere else, and so is a service
whose environment says what only an import would read.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path

from proving.chaos import clock
from slipstream.cli.service_process import ServiceProcess, execute

_READ_IN_TIME = ("SLIPSTREAM_", "OTEL_", "PYTEST_")
"""How names of variables begin that are read when a service starts, not by an import."""


class Nursery:
    """Starts services, in place of `slipstream.cli.service_process.execute`. The first of them
    starts its process."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.nursery_imports"])
        self._environment: Mapping[str, str] = {}
        """What its process has read, once it has started."""
        self._lock = threading.Lock()

    def start(self, module: str, flags: Sequence[str], log: Path, environment: Mapping[str, str]) -> ServiceProcess:
        """Run a module. ``environment``: all of it."""
        with self._lock:
            if not self._environment:
                self._environment = _read_by_imports(os.environ)
                with _clock_in_front():
                    forkserver.ensure_running()
        if _read_by_imports(environment) != self._environment:
            return execute(module, flags, log, environment)
        process = self._context.Process(target=_become, args=(module, [*flags], log, dict(environment)))
        process.start()
        atexit.register(process.terminate)  # no code waits for a process that a test has left
        return _Forked(process)


class _Forked:
    """A `ServiceProcess`."""

    def __init__(self, process: multiprocessing.context.ForkServerProcess) -> None:
        assert process.pid is not None
        self._process, self.pid = process, process.pid
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:  # the status is read from a pipe, once
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        connection.wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # whose parent has seen it end, and says so in a moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    read = {name: value for name, value in environment.items() if not name.startswith(_READ_IN_TIME)}
    if "LD_PRELOAD" in read and clock.can_be_set() and read["LD_PRELOAD"] == str(clock.shared_object()):
        del read["LD_PRELOAD"]
    return read


@contextlib.contextmanager
def _clock_in_front() -> Iterator[None]:
    """What starts inside has the library of `proving.chaos.clock` in front of libc, which says the
    true time until it is told otherwise."""
    if "LD_PRELOAD" in os.environ or not clock.can_be_set():
        yield
        return
    os.environ["LD_PRELOAD"] = str(clock.shared_object())
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


def _become(module: str, flags: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    os.setsid()
    with log.open("a") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    clock.look_again()
    threading.Thread(target=_end_with_tests, daemon=True).start()
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_tests() -> None:
    """Its parent is the nursery's process, which lives as long as any of its own: end with the
    tests that asked for it."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    connection.wait([tests.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
