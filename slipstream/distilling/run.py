"""A distillation as a process: threads, signals, lines for its user."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from types import FrameType

import torch

from slipstream.distilling.distillation import distil
from slipstream.distilling.settings import DistilSettings, as_yaml
from slipstream.distilling.table import table
from slipstream.distilling.watch import StoppedError

STOPPED_STATUS = 130


def run(settings: DistilSettings) -> int:
    """Distil, and print the settings and the result. Returns the exit status. SlipstreamError."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True, warn_only=settings.device != "cpu")
    stop = _Stop()
    try:
        result = distil(settings, _tell, stop.was_asked)
    except StoppedError:
        _tell("stopped; its steps are saved: the same command goes on")
        return STOPPED_STATUS
    print(as_yaml(settings))
    print(table(result.before, result.after, result.data, settings.temperature))
    command = shlex.join(["slipstream", "serve", settings.target, "--draft", settings.out])
    print(f"\n{settings.out} is ready: {command}")
    return 0


class _Stop:
    """Notes the first Ctrl-C or SIGTERM, and leaves the second one to Python."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def was_asked(self) -> bool:
        """Return True after the first signal."""
        return self._asked

    def _note(self, number: int, _: FrameType | None) -> None:
        self._asked = True
        os.write(
            2, b"stopping; a second signal ends it at once, and may lose its last steps\n"
        )  # print is not reentrant
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
