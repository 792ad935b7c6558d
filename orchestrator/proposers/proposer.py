"""A proposer as a session's run sees it.

::

    run starts --> prepare
    run begins --> begin --> hint .. hint --> sink (the verifier's run)
    part comes --> committed --> hint ..
    run ends   --> stop
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from orchestrator.peers.exchange import Work
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part
from orchestrator.rounds.terms import RoundTerms
from slipstream.wire.v1 import hint_pb2


class HintSink(Protocol):
    """The receiver of hints for one run."""

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the run's spans. Empty: not traced."""

    @property
    def goes_on(self) -> bool:
        """True unless the run has ended and all that it has chosen was taken."""

    def hint(self, message: hint_pb2.Hint) -> None:
        """Send a hint to the verifier. Does nothing once the run has ended."""


class Figures(NamedTuple):
    """Figures of a proposer since it was last asked."""

    works: Sequence[Work] = ()
    """Work of a draft on hints, and its failures."""
    is_switched_off: bool = False
    """True if the proposer has begun to rest because its hints do not pay."""


class Proposer(Protocol):
    """A maker of hints for one session. A hint cannot change a text, so a proposer may be late,
    silent or wrong. It never blocks, and raises nothing."""

    @property
    def rests(self) -> bool:
        """True while the proposer makes no hints because they do not pay."""
        return False

    def prepare(self, terms: RoundTerms, verifier: ModelInfo) -> float | None:
        """Get ready for a run that is about to begin at a verifier. Return the seconds for which
        its steps may wait for a hint of this proposer; None if no step waits for it."""
        return None

    def begin(self, tokens: Sequence[int], until_length: int, terms: RoundTerms, sink: HintSink) -> None:
        """Take in that a run begins after these committed ``tokens``, and ends at ``until_length``
        at the latest. If the run begins again within a turn, `stop` was called before."""

    def committed(self, position: int, part: Part) -> None:
        """Take in what the target has chosen: ``position`` is the sequence's length before
        ``part.tokens``."""

    def stop(self) -> None:
        """Take in that the run has ended."""

    def take_figures(self) -> Figures:
        """Return what was done since the last call."""
        return Figures()
