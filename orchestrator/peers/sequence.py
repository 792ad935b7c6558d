"""State of one session's sequence on one peer, as the orchestrator knows it. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.agreed import RULES_PER_HANDLE
from slipstream.reasons import Reason
from slipstream.sampling.rule import SamplingRule

REASONS_TO_RESTATE = (Reason.UNKNOWN_HANDLE, Reason.SEQUENCE_TOO_SHORT, Reason.UNKNOWN_RULE)
"""Reasons for which an item has to be stated in full, position and rule; nothing else is wrong."""


class Position(NamedTuple):
    """Position of a request: keep ``base_length`` tokens, then come the committed tokens
    ``tail``."""

    base_length: int
    tail: Sequence[int]


@dataclass(slots=True)
class StatedRule:
    """A rule as one handle's items name it. Once the peer ``is_told``, they need not state it."""

    rule: SamplingRule
    hash: int
    is_told: bool = False


def _new_handle() -> str:
    return secrets.token_hex(16)  # 128 bits, which no one can guess


@dataclass(slots=True)
class PeerSequence:
    """A handle, the last round's number, and how many committed tokens the peer's cache surely
    holds.

    The handle is ours to name. Until the peer ``is_open`` for it, requests carry the terms on which
    to open it. ``address`` is the peer's, where there are several to choose from and one has been.
    """

    address: str | None = None
    handle: str = field(default_factory=_new_handle)
    is_open: bool = False
    round: int = 0
    known_length: int = 0
    rules: list[StatedRule] = field(default_factory=list)
    """The last few that items named, the latest last."""
    is_private: bool = False
    """True if the peer may not collect what it computes for the sequence."""

    def next_round(self) -> int:
        """A number the peer has not seen."""
        self.round += 1
        return self.round

    def position(self, tokens: Sequence[int], length: int | None = None) -> Position:
        """The position to state for the first ``length`` committed ``tokens``, or all. At least the
        last one is sent: logits are wanted there.

        A peer keeps what it holds of the tail beyond ``base_length``, so stating too little costs a
        few bytes and no forward.
        """
        length = len(tokens) if length is None else length
        base_length = min(self.known_length, length - 1)
        return Position(base_length, tokens[base_length:length])

    def state(self, rule: SamplingRule, hash_of: Callable[[SamplingRule], int]) -> StatedRule:
        """The rule as the next item is to name it; ``hash_of`` is asked once for a rule."""
        for index, stated in enumerate(self.rules):
            if stated.rule is rule or stated.rule == rule:
                self.rules.append(self.rules.pop(index))
                return stated
        stated = StatedRule(rule, hash_of(rule))
        self.rules = [*self.rules[1 - RULES_PER_HANDLE :], stated]
        return stated

    def answered(self, handle: str, stated: StatedRule) -> None:
        """The peer has taken up an item of ``handle`` that named a rule. Nothing is learnt if that
        handle is no longer ours."""
        if handle == self.handle:
            self.is_open = stated.is_told = True

    def opened(self, handle: str) -> None:
        """Record that the peer has opened ``handle``. Nothing changes if that handle is no longer
        ours."""
        if handle == self.handle:
            self.is_open = True

    def learn(self, length: int) -> None:
        """The peer's cache holds at least this many committed tokens."""
        self.known_length = max(self.known_length, length)

    def limit(self, length: int) -> None:
        """The peer's cache, or the committed tokens it agrees with, is at most this long."""
        self.known_length = min(self.known_length, length)

    def correct(self, handle: str, reason: str, metadata: Mapping[str, str]) -> None:
        """The peer refused an item of ``handle``, for one of REASONS_TO_RESTATE: the next one will
        be right. Nothing changes if that handle is no longer ours: of two items that a peer refuses
        when it comes back without handles, the second must not have us forget the handle that the
        first one's restatement opens."""
        if handle != self.handle:
            return
        if reason == Reason.UNKNOWN_HANDLE:
            self.forget()
        elif reason == Reason.UNKNOWN_RULE:
            self.rules.clear()
        else:
            self.limit(int(metadata.get("cached_length", 0)))

    def forget(self) -> None:
        """The peer does not know the handle any more."""
        self.handle = _new_handle()
        self.is_open = False
        self.round = self.known_length = 0
        self.rules = []
