"""Tags of requests, by which acceptance is counted. Pure."""

from __future__ import annotations

import re
from typing import Final

from slipstream.errors import FieldViolation

MAX_TASK_LENGTH: Final = 64

_TASK = re.compile(r"[A-Za-z0-9_.:/-]*")


def task_violations(task: str) -> list[FieldViolation]:
    """Return what is wrong with a tag. Metrics have it as a label, and the store as a key."""
    if len(task) > MAX_TASK_LENGTH:
        return [FieldViolation("task", f"may have at most {MAX_TASK_LENGTH} characters, but has {len(task)}")]
    if not _TASK.fullmatch(task):
        return [FieldViolation("task", f"may have A-Z, a-z, 0-9 and _.:/- only, but is {task!r}")]
    return []
