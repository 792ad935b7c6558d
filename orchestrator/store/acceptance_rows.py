"""Rows of acceptance by hour. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

OTHER: Final = "other"
"""The task of tokens whose own task has no row of its own."""


class AcceptanceKey(NamedTuple):
    """The properties by which draft tokens are counted."""

    task: str
    target: str
    """Fingerprint of the target's weights."""
    draft: str
    """Fingerprint of the draft's weights; of hints without a draft the name of their source."""
    temperature: int
    """Class of the temperature: 0 is greedy, 1 up to 0.5, 2 up to 1, 3 up to 1.5, 4 above."""


class AcceptanceCounts(NamedTuple):
    """Draft tokens of turns. The sums of squares are over turns: they give a standard error that
    does not take the tokens of one turn for independent."""

    turns: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_squared: int = 0
    drafted_accepted: int = 0
    accepted_squared: int = 0

    @classmethod
    def of_turn(cls, drafted: int, accepted: int) -> AcceptanceCounts:
        """Return the counts of one turn."""
        return cls(1, drafted, accepted, drafted * drafted, drafted * accepted, accepted * accepted)

    def plus(self, other: AcceptanceCounts) -> AcceptanceCounts:
        """Return the counts of both."""
        return AcceptanceCounts(*(own + more for own, more in zip(self, other, strict=True)))


class AcceptanceRow(NamedTuple):
    """Counts of one hour, which is given in hours since the epoch."""

    hour: int
    key: AcceptanceKey
    counts: AcceptanceCounts


class TargetChange(NamedTuple):
    """A target that was served after another one."""

    since: float
    """When a process first served it, in seconds since the epoch."""
    name: str
    target: str
    before: str
    """Fingerprint of the target before it."""
