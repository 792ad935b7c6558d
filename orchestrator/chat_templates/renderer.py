"""Renders chat templates in a child process, which is started when it is first needed and again when it has ended."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.chat_templates.child import PROCESSOR_SECONDS
from orchestrator.chat_templates.rendering import Rendered, RenderingError

_PACKAGES = Path(__file__).resolve().parents[2]
_TRIES = 2
_PASSED = "PATH", "LD_LIBRARY_PATH", "PYTHONHOME"
"""What the child needs of the environment. The rest may hold secrets."""


class Renderer:
    """A child process for any number of templates and threads. One conversation is rendered at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def render(
        self, source: str, messages: Sequence[tuple[str, str]], special_tokens: dict[str, str], clock: datetime
    ) -> Rendered:
        """The prompt up to where the answer begins. RenderingError.

        Blocks for as long as the template takes: some tenths of a millisecond as a rule, and seconds at most.
        """
        asked = {"source": source, "messages": messages, "special_tokens": special_tokens, "clock": clock.isoformat()}
        answer = self._ask(json.dumps(asked) + "\n")
        if "error" in answer:
            raise RenderingError(answer["error"], refused=answer["refused"])
        return Rendered(answer["text"], tuple(answer["left_out"]))

    def close(self) -> None:
        """End the child process."""
        with self._lock:
            self._end()

    def _ask(self, request: str) -> dict[str, Any]:
        status = 0
        with self._lock:
            for _ in range(_TRIES):
                line = self._exchange(request)
                if line.endswith("\n"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
                status = self._end()
                if status == -signal.SIGPROF:
                    raise RenderingError(f"it takes more than {PROCESSOR_SECONDS:g} s of processor time")
        raise RenderingError(f"the process that renders it has ended with status {status}")

    def _exchange(self, request: str) -> str:
        """The answer's line; less than a line if the child has ended."""
        child = self._child
        if child is None or child.poll() is not None:
            self._end()
            child = self._child = _start()
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(request)
            child.stdin.flush()
            return child.stdout.readline()
        except BrokenPipeError:
            return ""

    def _end(self) -> int:
        """Its exit status."""
        child, self._child = self._child, None
        if child is None:
            return 0
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        status = child.wait()  # it ends with its input, or by its limit of time
        child.stdout.close()
        return status


def _start() -> subprocess.Popen[str]:
    paths = [str(_PACKAGES), *(path for path in sys.path if path and path != os.getcwd())]  # noqa: PTH109
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "orchestrator.chat_templates.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(paths)} | {name: os.environ[name] for name in _PASSED if name in os.environ},
        encoding="ascii",
        start_new_session=True,  # Ctrl-C is for the orchestrator, which still answers then
    )


RENDERER = Renderer()
"""The one of this process."""

atexit.register(RENDERER.close)
