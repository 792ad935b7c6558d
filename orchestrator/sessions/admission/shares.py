"""The share of the server that each principal has: the one that was served least goes first. Pure.

Start-time fair queueing (Goyal, Vin and Cheng 1996): a request's tag is the service that its
principal had received when it came, but at least that of the last request served. The lowest tag
goes first. A principal's priority is the weight of its tokens, so low priorities wait longer, and
never for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import PrincipalLimitError
from orchestrator.sessions.admission.principal import Limits, Principal, Priority

WEIGHTS = {Priority.LOW: 1.0, Priority.NORMAL: 4.0, Priority.HIGH: 16.0}
"""Weights: principals that always have requests waiting get tokens in this proportion."""

_MINUTE = 60.0
_MOST_KNOWN = 4096
"""Principals to remember, beside those with turns that run or wait."""

_UNKNOWN_SECONDS = 1.0
"""Seconds until a retry while no turn has been measured."""


class Wanted(Protocol):
    """The part of a `Demand` that shares read."""

    @property
    def principal(self) -> Principal:
        """The principal that makes the request."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""

    @property
    def fresh_length(self) -> int:
        """Tokens of the prompt that have to be computed."""

    @property
    def room(self) -> int:
        """Tokens that an answer may have."""

    @property
    def choice_count(self) -> int:
        """Number of answers."""


@dataclass(slots=True)
class Share:
    """The account of one principal."""

    turn_count: int
    """Turns that run or wait."""
    served: float
    """Weighted tokens that it was served."""
    left: float
    """Tokens left of its limit a minute; those that its turns may still generate are taken off.
    Infinite without a limit."""
    refilled: float
    """When ``left`` was computed, in seconds."""

    def refuse_beyond(self, limits: Limits, turn_count: int, token_count: int, turn_seconds: float) -> None:
        """Raise PrincipalLimitError if a request exceeds the principal's limits. Turns take
        ``turn_seconds``; 0 if that is not known."""
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
    """The accounts of all principals."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shares: dict[str, Share] = {}
        self._served = 0.0
        """The tag of the last request served."""

    def share_of(self, principal: Principal) -> Share:
        """Return a principal's account as it is now."""
        now, a_minute = self._clock(), principal.limits.tokens_per_minute
        share = self._shares.get(principal.name)
        if share is None:
            if len(self._shares) >= _MOST_KNOWN:
                self._forget_idle(now)
            share = self._shares[principal.name] = Share(0, self._served, math.inf, now)
        if a_minute is not None:  # a turn taken over does not know its principal's limit
            share.left = min(a_minute, share.left + (now - share.refilled) / _MINUTE * a_minute)
            share.refilled = now
        return share

    def tag(self, share: Share) -> float:
        """Return the tag of a principal's next request: the lowest tag is next."""
        return max(self._served, share.served)

    def charge(self, share: Share, wanted: Wanted) -> None:
        """Charge a principal for the turns of a request, each at its greatest length until it is
        refunded."""
        share.turn_count += wanted.choice_count
        share.left -= wanted.prompt_length + wanted.choice_count * wanted.room
        tokens = wanted.fresh_length + wanted.choice_count * wanted.room
        share.served = self.tag(share) + tokens / WEIGHTS[wanted.principal.priority]

    def serve(self, tag: float) -> None:
        """Note that a request with this tag is admitted: no later request goes before those that
        have waited."""
        self._served = max(self._served, tag)

    def refund(self, wanted: Wanted, token_count: int, *, used: bool, count: int = 1) -> None:
        """Refund ``count`` turns that ended with ``token_count`` each, or were never ``used``."""
        share = self.share_of(wanted.principal)
        share.turn_count -= count
        part = 0.0 if used else count / wanted.choice_count
        unused = count * (wanted.room - token_count)
        share.left += unused + part * wanted.prompt_length
        tokens = unused + part * wanted.fresh_length
        share.served = max(0.0, share.served - tokens / WEIGHTS[wanted.principal.priority])

    def _forget_idle(self, now: float) -> None:
        """Forget principals without a turn for a minute: their limits are full again."""
        for name, share in list(self._shares.items()):
            if not share.turn_count and (share.left == math.inf or now - share.refilled > _MINUTE):
                del self._shares[name]
