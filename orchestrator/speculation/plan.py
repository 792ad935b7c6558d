"""What a plan for a round says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Overlap(Enum):
    """What the draft does while the target verifies."""

    NONE = "none"
    """Nothing: a round asks for a proposal and waits for it."""
    ENUMERATE = "enumerate"
    """It prepares for what verification may answer; for an answer it did not prepare for, a round waits."""
    RUN_AHEAD = "run_ahead"
    """It is rounds ahead, and no round waits for it."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """``draft_length`` 0 is plain decoding: the draft is not asked. ``rate`` is the forecast in tokens a second, if
    there is one."""

    draft_length: int
    overlap: Overlap = Overlap.NONE
    branch_count: int = 0
    rate: float | None = None
    recovery_length: int = 0
    """Draft tokens to wait for where nothing that was prepared came true."""
    switches_off: bool = False
    """Whether this is the first plain round because speculation would cost."""

    @property
    def way(self) -> Overlap | None:
        """None is plain decoding."""
        return self.overlap if self.draft_length else None


PLAIN = RoundPlan(0)
