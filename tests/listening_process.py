"""A foreign server of ours to test with: a process that listens at an address."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_START_SECONDS = 60


@contextlib.contextmanager
def listening_process(command: Sequence[str], address: str, log: Path, home: Path) -> Iterator[None]:
    """Run a process from when it listens. AssertionError with its log if it does not."""
    with log.open("a") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HOME": str(home)})
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
