"""Which of several orchestrator processes keeps which session: its id says so. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """One process among those that share a port."""

    number: int
    """From 0."""
    count: int
    directory: Path
    """Where each process has its socket file, for calls that the others pass on."""

    def new_session_id(self) -> str:
        """16 hexadecimal digits whose value modulo the number of processes is this one's number."""
        value = secrets.randbits(63)
        return f"{value - value % self.count + self.number:016x}"

    def owner(self, session_id: str) -> int:
        """The number of the process that would keep such a session; this one's if nobody ever gave such an id."""
        try:
            return int(session_id, 16) % self.count
        except ValueError:
            return self.number

    def address(self, number: int) -> str:
        """Where a process listens for the others."""
        return f"unix:{self.directory / str(number)}"
