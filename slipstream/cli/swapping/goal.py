"""Size and result of a trial of a new draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slipstream.cli.swapping.comparison import Figures, Verdict
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason


class SwapError(SlipstreamError):
    """A swap cannot be done as it was asked."""

    reason = Reason.SERVICE_FAILED


@dataclass(frozen=True, slots=True)
class Goal:
    """Size and limits of a trial."""

    share: float
    turn_count: int
    """Turns of the new draft after which it is judged."""
    token_count: int | None
    """Tokens of the new draft after which it is judged, if that comes first."""
    longest: float
    """Seconds after which it is judged by what there is."""
    start_seconds: float
    """Seconds that the new draft has to serve."""


class Finding(NamedTuple):
    """The result of a trial."""

    verdict: Verdict
    why: str
    new: Figures
    old: Figures
