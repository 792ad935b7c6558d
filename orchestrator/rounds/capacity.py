"""The work that the verifiers can do at once, by the measured times of their steps and by their
memory."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

from orchestrator.peers.step_curve import StepCurve
from orchestrator.peers.verifiers import Verifiers

MOST_ROUNDS = 1024
"""Most rounds of one verifier at a time: as many items as its queue holds."""

_FEWEST_ROUNDS = 32
"""A handful of chats is no overload, however long a step takes; and what was measured at the start
may have been a machine's hiccup."""

_LONGER_SHARE, _LONGER_SECONDS = 0.5, 0.02
"""By how much all rounds may make a step longer than a lone round's: by half, or by this where half
is less. A new turn waits for the step that runs and then for its own, so beside them its first
token takes at most three times as long as alone."""

_FRESH_SECONDS = 0.5


class Capacity:
    """The capacity of all verifiers in use together. Hint tokens do not count: they yield when a
    step is full."""

    def __init__(self, verifiers: Verifiers, clock: Callable[[], float] = time.monotonic) -> None:
        self._verifiers = verifiers
        self._clock = clock
        self._round_count = 0
        self._computed = float("-inf")

    @property
    def round_count(self) -> int:
        """Turns that may run at once; at most half a second old."""
        now = self._clock()
        if now - self._computed > _FRESH_SECONDS:
            self._computed = now
            self._round_count = sum(map(rounds_at_once, self._curves()))
        return self._round_count

    @property
    def kv_token_count(self) -> int:
        """Tokens that fit into the verifiers' memory; 0: not known."""
        counts = [peer.info.kv_token_count for peer in self._verifiers.in_use if peer.info is not None]
        return sum(counts) if all(counts) else 0

    @property
    def kv_page_size(self) -> int:
        """Tokens that a piece of it holds, which is one sequence's; the largest of theirs."""
        return max((peer.info.kv_page_size for peer in self._verifiers.in_use if peer.info is not None), default=1)

    def prompt_seconds(self, token_count: int) -> float:
        """Return the seconds that prompts of so many tokens in all add to steps."""
        curves = self._curves()
        seconds = [each.work(1 + token_count) - each.work(1) for each in curves]
        return sum(seconds) / len(seconds) ** 2 if seconds else 0.0  # each verifier has its part of them

    def step_seconds(self, token_count: int) -> float:
        """Return the mean seconds of a verifier's step of so many tokens."""
        curves = self._curves()
        return sum(each.work(token_count) for each in curves) / len(curves) if curves else 0.0

    def _curves(self) -> list[StepCurve]:
        return [peer.steps for peer in self._verifiers.in_use]


def rounds_at_once(curve: StepCurve) -> int:
    """Rounds of one token each that a verifier takes into a step before that is too long."""
    alone = curve.seconds(1)
    longest = alone + max(_LONGER_SHARE * alone, _LONGER_SECONDS)
    count = bisect_right(range(1, MOST_ROUNDS + 1), longest, key=curve.seconds)
    return max(_FEWEST_ROUNDS, count)
