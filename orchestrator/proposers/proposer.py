"""A proposer as a session's run sees it.

::

    run begins --> begin --> hint .. hint --> sink (the verifier's run)
    part comes --> committed --> hint ..
    run ends   --> stop
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part
from orchestrator.rounds.terms import RoundTerms
from slipstream.wire.v1 import hint_pb2


class HintSink(Protocol):
    """The receiver of hints for one run."""

    def hint(self, message: hint_pb2.Hint) -> None:
        """Send a hint to the verifier. Does nothing once the run has ended."""


class Proposer(Protocol):
    """A maker of hints for one session. A hint cannot change a text, so a proposer may be late,
    silent or wrong. It never blocks, and raises nothing."""

    def begin(self, tokens: Sequence[int], until_length: int, terms: RoundTerms, sink: HintSink) -> None:
        """Take in that a run begins after these committed ``tokens``, and ends at ``until_length``
        at the latest. If the run begins again within a turn, `stop` was called before."""

    def committed(self, position: int, part: Part) -> None:
        """Take in what the target has chosen: ``position`` is the sequence's length before
        ``part.tokens``."""

    def stop(self) -> None:
        """Take in that the run has ended."""

    def longest_hold(self, terms: RoundTerms, verifier: ModelInfo) -> float | None:
        """Return the seconds for which a step of the next run may wait for this proposer's hint;
        None if no step waits for it."""
        return None
