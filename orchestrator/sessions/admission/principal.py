"""Principals: the callers that own sessions, with their limits and priorities."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Priority(IntEnum):
    """The order in which principals are served when not all can be."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one principal; None: no limit."""

    session_count: int | None = None
    running_turn_count: int | None = None
    tokens_per_minute: float | None = None
    """Tokens of prompts and answers together."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. For other principals its sessions do not exist."""

    name: str
    limits: Limits = Limits()
    priority: Priority = Priority.NORMAL
    operator: bool = False
    """True if it sees the turns of other principals, without their text."""


ANONYMOUS = Principal("")
"""The principal of all callers where access is not controlled."""
