"""Check the hints that a draft sends while it guesses."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.peers.checking.bounds import check_all_within, check_count, check_seconds, check_tokens, check_within
from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.results import check_timing
from slipstream.agreed import MAX_HINT_COUNT
from slipstream.wire.v1 import draft_pb2, hint_pb2

_MOST_TOKENS = 64
"""Most tokens of a hint."""

_LONGEST_SECONDS = 3600.0
"""Longest time after which a next hint may be due."""

_SOURCES = (hint_pb2.HINT_SOURCE_DRAFT, hint_pb2.HINT_SOURCE_BRANCH)


@dataclass(slots=True)
class HintCheck:
    """Checks the results of one draft's guessing, in their order."""

    length: int
    """The sequence's length that the draft was told."""
    until_length: int
    vocabulary_size: int
    """Number of the draft's tokens."""

    def check(self, result: draft_pb2.DraftResult, elapsed: float) -> None:
        """Raise PeerFaultError if a draft that has begun ``elapsed`` seconds ago cannot send this
        result."""
        check_count("hints", result.hints, MAX_HINT_COUNT)
        for hint in result.hints:
            self._check_hint(hint)
        check_timing(result.timing, elapsed)

    def _check_hint(self, hint: hint_pb2.Hint) -> None:
        check_within("hints.start", hint.start, 0, self.until_length)
        check_within("hints.length_seen", hint.length_seen, 0, self.length)
        check_count("hints.tokens", hint.tokens, _MOST_TOKENS, 1)
        check_tokens("hints.tokens", hint.tokens, self.vocabulary_size)
        check_count("hints.survivals", hint.survivals, len(hint.tokens), len(hint.tokens))
        check_all_within("hints.survivals", hint.survivals, 0.0, 1.0)
        if hint.source not in _SOURCES:
            raise PeerFaultError("hints.source", f"must be one of {_SOURCES}")
        if hint.HasField("next_due"):
            check_seconds("hints.next_due", hint.next_due, _LONGEST_SECONDS)
