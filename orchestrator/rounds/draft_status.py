"""The drafts of a process as an operator sees them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from orchestrator.rounds.draft_figures import DraftFigures
from orchestrator.rounds.drafting import DraftSide


class DraftState(Enum):
    """The state of a draft."""

    CONNECTING = auto()
    """The orchestrator has not reached the draft yet."""
    SERVING = auto()
    AWAY = auto()
    """The draft was reached, and is away or fails."""
    MISMATCHED = auto()
    """The draft's tokenizer does not fit the target's."""


class TrialTerms(NamedTuple):
    """The terms of a draft on trial."""

    share: float
    """Share of the sessions, from 0 to 1."""
    lease_seconds: float
    """Time until the draft is removed, unless the lease is renewed."""


@dataclass(frozen=True, slots=True)
class DraftStatus:
    """One draft by its name, which may be that of several services."""

    name: str
    state: DraftState
    model: str
    weights_fingerprint: str
    trial: TrialTerms | None
    session_count: int
    figures: DraftFigures
    trouble: str = ""
    """Why the draft does not serve, as far as that is known."""


def status_of_draft(name: str, sides: list[DraftSide], trial: TrialTerms | None) -> DraftStatus:
    """Return the status of the services of one name."""
    figures = DraftFigures()
    for side in sides:
        figures.merge(side.figures)
    known = [side.info for side in sides if side.info is not None]
    state = _state_of(sides)
    return DraftStatus(
        name,
        state,
        known[0].name if known else "",
        known[0].weights_fingerprint if known else "",
        trial,
        sum(side.session_count for side in sides),
        figures,
        "" if state is DraftState.SERVING else _trouble_of(sides),
    )


def _trouble_of(sides: list[DraftSide]) -> str:
    if not sides:
        return "no address is known for its name"
    return next((side.trouble for side in sides if side.trouble), "")


def _state_of(sides: list[DraftSide]) -> DraftState:
    if any(side.is_well and side.is_reachable for side in sides):
        return DraftState.SERVING
    if any(side.fits for side in sides):
        return DraftState.AWAY
    return DraftState.MISMATCHED if any(side.info is not None for side in sides) else DraftState.CONNECTING
