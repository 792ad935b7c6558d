"""The child process that renders. A request is a line of JSON on standard input, its answer a line
on standard output.

A template comes with a model's files and is a program. Here it has its own limits of processor time
and memory. At the first limit the kernel ends the process; at the second an allocation fails.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.chat_templates.rendering import Conversation, RenderingError, render

PROCESSOR_SECONDS = 2.0
"""Seconds of processor time for one conversation."""

MEMORY_BYTES = 512 * 2**20
"""Bytes of memory beyond those that the process has at its start."""


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _limit_memory()
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        answer = json.dumps(_answer(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _answer(line: str) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        clock = datetime.fromisoformat(asked["clock"])
        conversation = Conversation(
            asked["messages"], asked["special_tokens"], clock, asked["add_generation_prompt"], asked["variables"]
        )
        rendered = render(asked["source"], conversation)
    except RenderingError as error:
        return {"error": str(error), "refused": error.refused, "limited": error.limited}
    except (MemoryError, RecursionError) as error:
        is_limit = isinstance(error, MemoryError)
        return {"error": f"{type(error).__name__} while it is rendered", "refused": False, "limited": is_limit}
    return {
        "text": rendered.text,
        "left_out": rendered.left_out,
        "places": rendered.places,
        "unread": rendered.unread,
    }


def _limit_memory() -> None:
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # not on Linux
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


if __name__ == "__main__":
    main()
