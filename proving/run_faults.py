"""Faults of the traffic about runs: the messages between an orchestrator and a verifier that
continues by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from proving.proxy import Fault, RunItem, RunResult
from slipstream.wire.v1 import model_pb2, verifier_pb2

Strike = Callable[[int], None]
Key = tuple[str, int]
_CLOSING = 2**40
"""Round of the items that close a handle without the orchestrator's knowledge."""


class RunFault(Fault):
    """A fault that draws from a seeded source and counts its strikes."""

    def __init__(self, rng: random.Random, strike: Strike) -> None:
        self.rng = rng
        self.strike = strike


class Delayed(RunFault):
    """Delays some messages, and all messages behind them."""

    share, longest = 0.6, 0.08

    def run_delay(self) -> float:
        """Delay a message now and then."""
        if self.rng.random() > self.share:
            return 0
        self.strike(1)
        return self.rng.random() * self.longest


class Twice(RunFault):
    """Sends starts, grants and stops twice. The repetition has no results."""

    share = 0.5

    def run_items(self, items: list[RunItem]) -> list[RunItem]:
        """Repeat items."""
        sent = []
        for item in items:
            sent.append(item)
            if self.rng.random() < self.share:
                sent.append(item)
                self.strike(1)
        return sent


class HandlesForgotten(RunFault):
    """Closes a handle in the middle of its run, soon after the start and then every twenty parts or
    so. The orchestrator does not know."""

    def __init__(self, rng: random.Random, strike: Strike) -> None:
        super().__init__(rng, strike)
        self._left = rng.randint(1, 3)

    def run_results(self, results: list[RunResult]) -> tuple[list[RunResult], list[RunItem]]:
        """Close the handles of some parts."""
        results = [result for result in results if result.round != _CLOSING]
        closing = [
            RunItem(handle=result.handle, round=_CLOSING, close=model_pb2.CloseSequence())
            for result in results
            if goes_on(result) and self._is_due()
        ]
        self.strike(len(closing))
        return results, closing

    def _is_due(self) -> bool:
        self._left -= 1
        if self._left:
            return False
        self._left = self.rng.randint(5, 35)
        return True


@dataclass(slots=True)
class _Run:
    """The grants of one run."""

    allowed: int
    """The length that the orchestrator has granted."""
    told: int
    """The length that the verifier knows of."""
    reached: int = 0
    """The length up to the last part."""


class Paused(RunFault):
    """Grants a few tokens at a time, so that runs pause. Old grants come late."""

    most = 6

    def __init__(self, rng: random.Random, strike: Strike) -> None:
        super().__init__(rng, strike)
        self._runs: dict[Key, _Run] = {}

    def run_items(self, items: list[RunItem]) -> list[RunItem]:
        """Keep back what the orchestrator grants."""
        return [sent for item in items for sent in self._instead_of(item)]

    def run_results(self, results: list[RunResult]) -> tuple[list[RunResult], list[RunItem]]:
        """Grant more if a run pauses."""
        grants: list[RunItem] = []
        for result in results:
            key = (result.handle, result.round)
            if not goes_on(result):
                self._runs.pop(key, None)
            elif (run := self._runs.get(key)) is not None:
                run.reached = result.position + len(result.tokens)
                grants += self._grants(key, run)
        return results, grants

    def closes(self, handle: str) -> None:
        """Forget a handle's runs."""
        for key in [key for key in self._runs if key[0] == handle]:
            del self._runs[key]

    def _instead_of(self, item: RunItem) -> list[RunItem]:
        key = (item.handle, item.round)
        if item.HasField("start"):
            length = item.start.base_length + len(item.start.tail)
            run = _Run(item.start.granted_length, min(item.start.granted_length, length + self._few()))
            item.start.granted_length = self._runs.setdefault(key, run).told  # a repeated start has equal content
        elif item.HasField("grant") and key in self._runs:
            run = self._runs[key]
            run.allowed = max(run.allowed, item.grant.granted_length)
            return self._grants(key, run)
        return [item]

    def _grants(self, key: Key, run: _Run) -> list[RunItem]:
        """Return the next grant and an old one, if the run pauses and may go on."""
        if run.reached < run.told or run.told >= run.allowed:
            return []
        old, run.told = run.told, min(run.allowed, run.told + self._few())
        self.strike(1)
        return [_grant(key, run.told), _grant(key, old)]

    def _few(self) -> int:
        return self.rng.randint(1, self.most)


class GrantLost(RunFault):
    """Loses the grants of the first run, which pauses for ever. Only the silence shows it."""

    def __init__(self, rng: random.Random, strike: Strike) -> None:
        super().__init__(rng, strike)
        self._lost: Key | None = None

    def run_items(self, items: list[RunItem]) -> list[RunItem]:
        """Drop the grants of one run."""
        sent = []
        for item in items:
            if item.HasField("start"):
                self._shorten(item)
            if not (item.HasField("grant") and (item.handle, item.round) == self._lost):
                sent.append(item)
        return sent

    def _shorten(self, item: RunItem) -> None:
        length = item.start.base_length + len(item.start.tail)
        if self._lost is None and item.start.granted_length > length + 1:
            self._lost = (item.handle, item.round)
            self.strike(1)
        if self._lost == (item.handle, item.round):
            item.start.granted_length = length + 1


def goes_on(result: RunResult) -> bool:
    """Return True if a result is not its run's last."""
    return not result.HasField("error") and result.end == verifier_pb2.RUN_END_UNSPECIFIED


def _grant(key: Key, length: int) -> RunItem:
    return RunItem(handle=key[0], round=key[1], grant=verifier_pb2.GrantTokens(granted_length=length))
