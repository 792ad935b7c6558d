"""Several orchestrator processes on one port: start them, restart a process that dies, stop all."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.processes.process import run_process
from orchestrator.processes.process_slot import ProcessSlot
from orchestrator.processes.settings import OrchestratorSettings
from orchestrator.store.opening import MEMORY
from slipstream.errors import SlipstreamError
from slipstream.parent import end_with
from slipstream.rpc.server import AddressInUseError
from slipstream.telemetry.logs import configure_logging

log = logging.getLogger(__name__)

_LAST_PORT = 65_535
_EARLY_SECONDS, _MOST_EARLY_DEATHS = 30.0, 5
"""After this many deaths in a row, each within these seconds of its start, all processes stop."""


def supervise(settings: OrchestratorSettings) -> int | str:
    """Serve in several processes until signalled; return the exit code or message.

    A killed process is started again, and other processes take its turns over. A process that exits
    by itself has logged the reason, and ends all processes.
    """
    configure_logging("orchestrator", settings.log_level, settings.log_format)
    try:
        settings.listening(), settings.connector()  # report a wrong setting once, not in each process
        with (
            _reserved(settings.address) as address,
            tempfile.TemporaryDirectory(prefix="slipstream-") as directory,
            ExitStack() as stack,
        ):
            slot = ProcessSlot(0, settings.process_count, Path(directory), advertised=settings.advertise)
            for number in range(settings.process_count if settings.advertise else 0):
                port = dataclasses.replace(slot, number=number).advertised_port(address)
                stack.enter_context(_reserved(port, "--advertise"))
            # Processes cannot share memory: they share a temporary file.
            store = f"{directory}/sessions.db" if settings.store == MEMORY else settings.store
            own = settings.model_copy(update={"address": address, "store": store})
            return _Processes(own, slot).run()
    except SlipstreamError as error:
        return f"orchestrator: {error}"


class _Processes:
    def __init__(self, settings: OrchestratorSettings, slot: ProcessSlot) -> None:
        self._settings = settings
        self._slot = slot
        # Each process is a new interpreter: gRPC does not survive a fork.
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[int, multiprocessing.context.SpawnProcess] = {}
        self._started: dict[int, float] = {}
        self._early_deaths = 0
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, self._signalled)
        for number in range(self._settings.process_count):
            self._start(number)
        while self._running:
            ended = wait([process.sentinel for process in self._running.values()])
            for number in [n for n, process in self._running.items() if process.sentinel in ended]:
                self._ended(number)
        return self._exit_code

    def _start(self, number: int) -> None:
        slot = dataclasses.replace(self._slot, number=number)
        process = self._context.Process(
            target=_run_child, args=(os.getpid(), self._settings, slot), name=f"orchestrator-{number}", daemon=True
        )
        process.start()
        self._running[number] = process
        self._started[number] = time.monotonic()
        if self._stopping:  # the signal came during the start
            process.terminate()

    def _ended(self, number: int) -> None:
        process = self._running.pop(number)
        process.join()
        code = process.exitcode or 0
        if self._stopping:
            return
        self._early_deaths = self._early_deaths + 1 if time.monotonic() - self._started[number] < _EARLY_SECONDS else 0
        if code > 0 or self._early_deaths > _MOST_EARLY_DEATHS:
            log.error("process %d ended (exit code %d): stopping the others", number, code)
            self._exit_code = max(1, code)
            self._stop()
        else:
            log.error("process %d ended (exit code %d) and is started again", number, code)
            self._start(number)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for process in list(self._running.values()):
            process.terminate()


def _run_child(parent_pid: int, settings: OrchestratorSettings, slot: ProcessSlot) -> None:
    end_with(parent_pid)
    run_process(settings, slot)


@contextmanager
def _reserved(address: str, flag: str = "--address") -> Iterator[str]:
    """Reserve an address for the processes that share it; yield it with its port number.

    AddressInUseError if another program listens there, which a shared port would not notice.
    """
    host, _, digits = address.rpartition(":")
    try:
        port = int(digits)
        if not 0 <= port <= _LAST_PORT:
            raise ValueError(f"ports end at {_LAST_PORT}")
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:  # without SO_REUSEPORT: fails if another program listens
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            where = probe.getsockname()
        kept = _bound(socket.socket(family, kind, protocol), where)
    except (OSError, ValueError) as error:
        raise AddressInUseError.at(address, flag) from error
    with kept:
        yield f"{host}:{where[1]}"


def _bound(kept: socket.socket, where: tuple[Any, ...]) -> socket.socket:
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        kept.bind(where)
    except OSError:  # connections of an earlier server are still closing
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(where)
    return kept
