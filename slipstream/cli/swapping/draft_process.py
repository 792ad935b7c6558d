"""A draft service that a command starts, and that lives on if the command lets it.

::

    the command's pipe --> the service: "keep" lives on; an end without it is SIGTERM
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.cli.service_process import Service, ServiceProcess
from slipstream.interpreter import module_command

_KEEP = b"keep\n"


def _execute(module: str, flags: Sequence[str], log: Path, environment: Mapping[str, str]) -> ServiceProcess:
    """Run a module that ends with this process, unless it is told to live on."""
    with log.open("w") as output:
        return subprocess.Popen(
            module_command(__name__, module, *flags),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us
            env=dict(environment),
        )


class DraftProcess(Service):
    """A draft service in a process that may outlive this one."""

    start_process = staticmethod(_execute)

    def __init__(self, address: str, flags: Sequence[str]) -> None:
        super().__init__("draft", "draft_service", address, flags, {})
        self.command = module_command("draft_service", "--address", address, *flags)
        """The command that starts the same service again."""

    def keep(self) -> None:
        """Let the service live on after this process."""
        assert isinstance(self.process, subprocess.Popen) and self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write(_KEEP)
            self.process.stdin.close()


def _end_with_pipe() -> None:
    """End this process when the pipe ends without the word that lets it live."""
    if os.read(0, len(_KEEP)) != _KEEP:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Watch the pipe; then become the module."""
    threading.Thread(target=_end_with_pipe, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
