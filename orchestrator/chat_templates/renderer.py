"""The renderer of chat templates in a child process, which starts when it is needed and again after
it has ended."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator.chat_templates.child import PROCESSOR_SECONDS
from orchestrator.chat_templates.rendering import Conversation, Rendered, RenderingError
from orchestrator.errors import OverloadedError

WALL_SECONDS = 10 * PROCESSOR_SECONDS
"""Seconds of wall time for one conversation. A stopped or swapped-out process takes longer."""

_EXIT_SECONDS = 10.0
"""Seconds in which a process ends after its pipe is closed."""

_PACKAGES = Path(__file__).resolve().parents[2]
_TRIES = 2
_PIECE = 2**20
_PASSED = "PATH", "LD_LIBRARY_PATH", "PYTHONHOME"
"""Environment variables that the child needs. The rest may hold secrets."""


class Renderer:
    """A child process for any number of templates and threads. One conversation is rendered at a
    time."""

    def __init__(self) -> None:
        self.wall_seconds = WALL_SECONDS
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def render(self, source: str, conversation: Conversation) -> Rendered:
        """Render a conversation with the template ``source``. RenderingError; OverloadedError if
        the machine cannot render now.

        Blocks as long as the template takes: usually some tenths of a millisecond, and seconds at
        most.
        """
        asked = {
            "source": source,
            "messages": conversation.messages,
            "special_tokens": conversation.special_tokens,
            "clock": conversation.clock.isoformat(),
            "add_generation_prompt": conversation.add_generation_prompt,
            "variables": conversation.variables,
        }
        answer = self._ask(json.dumps(asked).encode() + b"\n")
        if "error" in answer:
            raise RenderingError(answer["error"], refused=answer["refused"], limited=answer["limited"])
        return Rendered(answer["text"], tuple(answer["left_out"]), tuple(answer["places"]), tuple(answer["unread"]))

    def close(self) -> None:
        """End the child process."""
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> dict[str, Any]:
        status = 0
        with self._lock:
            for _ in range(_TRIES):
                line = self._exchange(request)
                if line.endswith(b"\n"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
                status = self._end(_EXIT_SECONDS)
                if status == -signal.SIGPROF:
                    raise RenderingError(f"it takes more than {PROCESSOR_SECONDS:g} s of processor time", limited=True)
        if status == -signal.SIGKILL:  # no template does that: the kernel does, where memory is short
            raise _overloaded("the process that renders chat templates has been killed")
        raise RenderingError(f"the process that renders it has ended with status {status}")

    def _exchange(self, request: bytes) -> bytes:
        """Return the answer's line; less than a line if the child has ended. OverloadedError."""
        ends = time.monotonic() + self.wall_seconds
        try:
            child = self._running()
            _write(child, request, ends)
            return _read(child, ends)
        except BrokenPipeError:
            return b""
        except TimeoutError:
            self._end()
            raise _overloaded(
                f"the process that renders chat templates has not answered within {self.wall_seconds:g} s"
            ) from None
        except OSError as error:
            self._end()
            raise _overloaded(f"the process that renders chat templates cannot be started or asked: {error}") from error

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._child = _start()
        return self._child

    def _end(self, patience: float = 0) -> int:
        """End the child, by force if it does not end by itself. Returns its exit status."""
        child, self._child = self._child, None
        if child is None:
            return 0
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()
        try:
            status = child.wait(patience)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        child.stdout.close()
        return status


def _overloaded(what: str) -> OverloadedError:
    return OverloadedError(what, limit="chat_templates")


def _write(child: subprocess.Popen[bytes], request: bytes, ends: float) -> None:
    assert child.stdin is not None
    left = memoryview(request)
    while left:
        _wait(child.stdin.fileno(), select.POLLOUT, ends)
        left = left[os.write(child.stdin.fileno(), left) :]


def _read(child: subprocess.Popen[bytes], ends: float) -> bytes:
    """Read a line, or what there is until the child has ended."""
    assert child.stdout is not None
    pieces = [b""]
    while not pieces[-1].endswith(b"\n"):
        _wait(child.stdout.fileno(), select.POLLIN, ends)
        pieces.append(os.read(child.stdout.fileno(), _PIECE))
        if not pieces[-1]:
            break
    return b"".join(pieces)


def _wait(pipe: int, event: int, ends: float) -> None:
    """Wait until the pipe can be used, or until ``ends``. TimeoutError."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, ends - time.monotonic()) * 1000):
        raise TimeoutError


def _start() -> subprocess.Popen[bytes]:
    paths = [str(_PACKAGES), *(path for path in sys.path if path and path != os.getcwd())]  # noqa: PTH109
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "orchestrator.chat_templates.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={"PYTHONPATH": os.pathsep.join(paths)} | {name: os.environ[name] for name in _PASSED if name in os.environ},
        start_new_session=True,  # Ctrl-C is for the orchestrator, which still answers then
    )
    assert child.stdin is not None
    os.set_blocking(child.stdin.fileno(), False)  # its buffer is smaller than some conversations
    return child


RENDERER, LONG_RENDERER = Renderer(), Renderer()
"""Renderers of this process. Long conversations have their own, so that short ones need not wait
for them."""

atexit.register(RENDERER.close)
atexit.register(LONG_RENDERER.close)
