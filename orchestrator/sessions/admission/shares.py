"""What each principal has of the server, and who is next: whoever was served least goes first.
Pure.

Start-time fair queueing (Goyal, Vin and Cheng 1996): a request's tag is what its principal had been
served, or everybody had, when it came; the lowest tag goes first. A principal's priority is the
weight of its tokens, so low priorities wait longer and never for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import PrincipalLimitError
from orchestrator.sessions.admission.principal import Limits, Principal, Priority

WEIGHTS = {Priority.LOW: 1.0, Priority.NORMAL: 4.0, Priority.HIGH: 16.0}
"""Of two that both always have somebody waiting, one gets so many times as many tokens as the
other."""

_MINUTE = 60.0
_MOST_KNOWN = 4096
"""Principals of whom something is known, those with something running or waiting aside."""

_UNKNOWN_SECONDS = 1.0
"""After which to come back where nothing says how long a turn takes."""


class Wanted(Protocol):
    """What a request asks for; see `orchestrator.sessions.admission.Demand`."""

    @property
    def principal(self) -> Principal:
        """On whose behalf."""

    @property
    def prompt_length(self) -> int:
        """Tokens."""

    @property
    def fresh_length(self) -> int:
        """Of the prompt, what has to be computed."""

    @property
    def room(self) -> int:
        """Tokens that an answer may have."""

    @property
    def choice_count(self) -> int:
        """Answers."""


@dataclass(slots=True)
class Share:
    """Of one principal."""

    turn_count: int
    """That run or wait."""
    served: float
    """Weighted tokens, by the common account."""
    left: float
    """Tokens that it may have now, of those of a minute; what its turns may still say is not among
    them. Infinite: as many as there are."""
    refilled: float
    """When ``left`` was that, in seconds."""

    def refuse_beyond(self, limits: Limits, turn_count: int, token_count: int, turn_seconds: float) -> None:
        """PrincipalLimitError for one that would have more than its limits; turns take
        ``turn_seconds``, 0 if nobody knows."""
        most = limits.running_turn_count
        if most is not None and self.turn_count + turn_count > most:
            seconds = (turn_seconds or _UNKNOWN_SECONDS) / max(1, self.turn_count)
            what = f"{self.turn_count} turns run or wait, of at most {most}"
            raise PrincipalLimitError(what, "running_turn_count", seconds if turn_count <= most else None)
        a_minute = limits.tokens_per_minute
        if a_minute is not None and token_count > self.left:
            what = f"{token_count} tokens of prompt and answer; of {a_minute:g} a minute {max(0.0, self.left):.0f} are left now"
            seconds = (token_count - self.left) / a_minute * _MINUTE
            raise PrincipalLimitError(what, "tokens_per_minute", seconds if token_count <= a_minute else None)


class Shares:
    """Of all principals."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shares: dict[str, Share] = {}
        self._served = 0.0  # of whoever was served last

    def of(self, principal: Principal) -> Share:
        """As it is now."""
        now, a_minute = self._clock(), principal.limits.tokens_per_minute
        share = self._shares.get(principal.name)
        if share is None:
            if len(self._shares) >= _MOST_KNOWN:
                self._forget_idle(now)
            share = self._shares[principal.name] = Share(0, self._served, math.inf, now)
        if a_minute is not None:  # else it is not known just now, as of one whose turn was taken over
            share.left = min(a_minute, share.left + (now - share.refilled) / _MINUTE * a_minute)
            share.refilled = now
        return share

    def tag(self, share: Share) -> float:
        """Where its next request stands: the lowest is next."""
        return max(self._served, share.served)

    def take(self, share: Share, wanted: Wanted) -> None:
        """It has, or waits for, a turn for each choice: until they are given back each counts as
        long as it may become."""
        share.turn_count += wanted.choice_count
        share.left -= wanted.prompt_length + wanted.choice_count * wanted.room
        tokens = wanted.fresh_length + wanted.choice_count * wanted.room
        share.served = self.tag(share) + tokens / WEIGHTS[wanted.principal.priority]

    def serve(self, tag: float) -> None:
        """One with this tag gets its turn: nobody who comes from now on goes before those that have
        waited."""
        self._served = max(self._served, tag)

    def give_back(self, wanted: Wanted, token_count: int, *, used: bool, count: int = 1) -> None:
        """So many of its turns have ended, each with ``token_count``, or were never ``used``."""
        share = self.of(wanted.principal)
        share.turn_count -= count
        part = 0.0 if used else count / wanted.choice_count
        unused = count * (wanted.room - token_count)
        share.left += unused + part * wanted.prompt_length
        tokens = unused + part * wanted.fresh_length
        share.served = max(0.0, share.served - tokens / WEIGHTS[wanted.principal.priority])

    def _forget_idle(self, now: float) -> None:
        """Those who have had nothing for a minute have all of their tokens again."""
        for name, share in list(self._shares.items()):
            if not share.turn_count and (share.left == math.inf or now - share.refilled > _MINUTE):
                del self._shares[name]
