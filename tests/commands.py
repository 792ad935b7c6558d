"""The command ``slipstream`` as tests run it, and what it must not leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

SLIPSTREAM = [sys.executable, "-m", "slipstream.cli"]


def left_behind() -> list[str]:
    """Return the command lines of orphaned services: the process that each one names as its parent
    has ended."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    services = [line for line in lines if "slipstream.cli.child" in line]
    parent = [int(line[line.index("slipstream.cli.child") + 1]) for line in services]
    return [" ".join(line) for line, pid in zip(services, parent, strict=True) if not psutil.pid_exists(pid)]


def wait_until_none_left() -> None:
    deadline = time.monotonic() + 60
    while left_behind():
        assert time.monotonic() < deadline, left_behind()
        time.sleep(0.1)


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Inside, a command that starts services is ready; with what it showed until then. It is ended
    in any case."""
    with subprocess.Popen([*SLIPSTREAM, *command], stderr=subprocess.PIPE, text=True) as up:
        try:
            assert up.stderr is not None
            shown = ""
            while "ready" not in shown and (line := up.stderr.readline()):
                shown += line
            yield up, shown
        finally:
            up.terminate()


def run(*command: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of slipstream's whose streams are no terminal."""
    known = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    return subprocess.run([*SLIPSTREAM, *command], input=text, capture_output=True, text=True, timeout=240, env=known)
