"""On whose behalf something is asked: whom its sessions belong to, and how much each may have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Priority(IntEnum):
    """Who goes first where not all can."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What one principal may have at once; None: as much as there is."""

    session_count: int | None = None
    running_turn_count: int | None = None
    tokens_per_minute: float | None = None
    """Of prompts and answers together."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. Its sessions are its own: to others they are not there."""

    name: str
    limits: Limits = Limits()
    priority: Priority = Priority.NORMAL
    operator: bool = False
    """Whether it sees what runs for others: not what they say."""


ANONYMOUS = Principal("")
"""Where nobody has to say who they are, all are one."""
