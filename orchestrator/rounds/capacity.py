"""How much the verifiers can do at once, by what their steps are measured to take and what their
memory holds."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from orchestrator.peers.verifiers import Verifiers
from orchestrator.speculation.costs import VerifyCosts
from orchestrator.speculation.knowledge import PairKnowledge

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

_ROUND_COUNTS = np.arange(1, MOST_ROUNDS + 1)


class Capacity:
    """Of all verifiers in use together. Draft tokens do not count: they yield when a turn has to
    wait."""

    def __init__(
        self, verifiers: Verifiers, knowledge: PairKnowledge, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._verifiers = verifiers
        self._knowledge = knowledge
        self._clock = clock
        self._round_count = 0
        self._computed = float("-inf")

    @property
    def round_count(self) -> int:
        """Turns that may run at once; at most half a second old."""
        now = self._clock()
        if now - self._computed > _FRESH_SECONDS:
            self._computed = now
            self._round_count = sum(map(rounds_at_once, self._costs()))
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
        """What prompts of so many tokens in all take beside rounds."""
        costs = self._costs()
        seconds = [each.work(1 + token_count) - each.work(1) for each in costs]
        return sum(seconds) / len(seconds) ** 2 if seconds else 0.0  # each verifier has its part of them

    def step_seconds(self, token_count: int) -> float:
        """What steps of so many tokens in all take, each verifier its own."""
        costs = self._costs()
        return sum(each.work(token_count) for each in costs) / len(costs) if costs else 0.0

    def spare_drafts(self, seconds: float) -> None:
        """For so long, or until told again, draft tokens have only the rows that turns leave
        them."""
        until = self._clock() + seconds
        for peer in self._verifiers.in_use:
            known = self._knowledge.verifiers[peer.address]
            known.budget.spare(rounds_at_once(known.costs), until)

    def _costs(self) -> list[VerifyCosts]:
        return [self._knowledge.verifiers[peer.address].costs for peer in self._verifiers.in_use]


def rounds_at_once(costs: VerifyCosts) -> int:
    """Rounds of one token each that a verifier takes into a step before that is too long."""
    curve = costs.alone if costs.alone.known else costs.beside
    times = curve.table(_ROUND_COUNTS)
    alone = float(times[0])
    longest = alone + max(_LONGER_SHARE * alone, _LONGER_SECONDS)
    return max(_FEWEST_ROUNDS, int(np.searchsorted(times, longest, side="right")))
