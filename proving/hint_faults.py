"""Faults of hints on their way to a verifier. None may change a text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from proving.proxy import RunItem, RunResult
from proving.run_faults import Key, RunFault, Strike, goes_on
from slipstream.wire.v1 import hint_pb2

MOST_TOKENS = 64
_VOCABULARY_SIZE = 4096


@dataclass(slots=True)
class _Run:
    """State of a run, as it passed."""

    until_length: int
    length: int
    """Length of the sequence."""
    last: list[int]
    """The last tokens that were sent or chosen."""
    held: list[RunItem] = field(default_factory=list)
    """Hints that are held back."""


class _Hinted(RunFault):
    """Follows the runs, and asks what to send with each message of one."""

    def __init__(self, rng: random.Random, strike: Strike) -> None:
        super().__init__(rng, strike)
        self._runs: dict[Key, _Run] = {}

    def run_items(self, items: list[RunItem]) -> list[RunItem]:
        """Follow the starts, and send other hints."""
        sent: list[RunItem] = []
        for item in items:
            key, start = (item.handle, item.round), item.start
            if item.HasField("start") and key not in self._runs:
                length = start.base_length + len(start.tail)
                self._runs[key] = run = _Run(start.until_length, length, list(start.tail[-MOST_TOKENS:]))
                sent += [item, *self._count(self.beside(key, run))]
            elif item.HasField("hint"):
                sent += self.instead_of(item, self._runs.get(key))
            else:
                sent.append(item)
        return sent

    def run_results(self, results: list[RunResult]) -> tuple[list[RunResult], list[RunItem]]:
        """Follow the parts, and send hints after them."""
        also: list[RunItem] = []
        for result in results:
            key = (result.handle, result.round)
            if not goes_on(result):
                self._runs.pop(key, None)
            elif (run := self._runs.get(key)) is not None:
                run.length = result.position + len(result.tokens)
                run.last = [*run.last, *result.tokens][-MOST_TOKENS:]
                also += self._count(self.beside(key, run))
        return results, also

    def closes(self, handle: str) -> None:
        """Forget a handle's runs."""
        for key in [key for key in self._runs if key[0] == handle]:
            del self._runs[key]

    def beside(self, key: Key, run: _Run) -> list[RunItem]:
        """Return hints to send after a start or a part. Each is a strike."""
        return []

    def instead_of(self, item: RunItem, run: _Run | None) -> list[RunItem]:
        """Return hints to send instead of one of the orchestrator's."""
        return [item]

    def random_tokens(self, count: int) -> list[int]:
        """Return token ids, of which the smaller vocabulary does not have all."""
        return [self.rng.randrange(_VOCABULARY_SIZE) for _ in range(count)]

    def spoiled(self, item: RunItem) -> RunItem:
        """Return another hint: equal up to some token, wrong from there on, and sure of itself."""
        other = RunItem()
        other.CopyFrom(item)
        hint = other.hint
        kept = self.rng.randrange(len(hint.tokens))
        hint.tokens[kept:] = self.random_tokens(self.rng.randint(1, MOST_TOKENS - kept))
        hint.survivals[:] = [1.0] * len(hint.tokens)
        return other

    def _count(self, items: list[RunItem]) -> list[RunItem]:
        self.strike(len(items))
        return items


class HintsMadeUp(_Hinted):
    """Makes hints up: random tokens, tokens that are right and then wrong, places that the run has
    left and that it never reaches, and every kind of confidence."""

    def beside(self, key: Key, run: _Run) -> list[RunItem]:
        """Send a few hints."""
        return [_item(key, self._made(run)) for _ in range(self.rng.randint(0, 3))]

    def _made(self, run: _Run) -> hint_pb2.Hint:
        start, tokens = self._place(run)
        tokens = tokens[:MOST_TOKENS]
        return hint_pb2.Hint(
            start=max(0, start),
            tokens=tokens,
            survivals=self._survivals(len(tokens)),
            source=self.rng.choice(hint_pb2.HintSource.values()[1:]),
            source_id=self.rng.randrange(3),
            length_seen=self.rng.choice((0, run.length, run.until_length)),
        )

    def _place(self, run: _Run) -> tuple[int, list[int]]:
        known = self.rng.randint(0, len(run.last))
        wrong = self.random_tokens(self.rng.randint(1, MOST_TOKENS))
        repeated = (run.last[-self.rng.randint(1, 4) :] * MOST_TOKENS)[: len(wrong)]
        return self.rng.choice(
            (
                (run.length, wrong),
                (run.length, repeated),
                (run.length - known, [*run.last[len(run.last) - known :], *wrong]),
                (run.length + self.rng.randint(1, 40), repeated),
                (run.until_length - self.rng.randint(1, 3), repeated),
                (run.until_length + self.rng.randrange(100), wrong),
                (0, wrong),
            )
        )

    def _survivals(self, count: int) -> Sequence[float]:
        falling = [0.9**power for power in range(count)]
        return self.rng.choice(([1.0] * count, [0.0] * count, falling, falling[::-1]))


class HintsLate(_Hinted):
    """Sends the orchestrator's hints late, out of order, and repeatedly."""

    most_held = 6

    def instead_of(self, item: RunItem, run: _Run | None) -> list[RunItem]:
        """Hold the hint back, and send some that were held before."""
        if run is None:
            return [item]
        run.held.append(item)
        self.strike(1)
        return self._some(run) if len(run.held) > self.rng.randint(0, self.most_held) else []

    def beside(self, key: Key, run: _Run) -> list[RunItem]:
        """Send some that were held back."""
        return self._some(run) if run.held and self.rng.random() < 0.3 else []

    def _some(self, run: _Run) -> list[RunItem]:
        sent = self.rng.choices(run.held, k=self.rng.randint(1, 3))
        run.held = run.held[-self.most_held :]
        if self.rng.random() < 0.5:
            run.held.remove(self.rng.choice(run.held))
        return sent


class HintsContradicted(_Hinted):
    """Sends another hint beside each of the orchestrator's: by the same maker or by a second draft,
    equal up to some token and then wrong, and surer of itself."""

    def instead_of(self, item: RunItem, run: _Run | None) -> list[RunItem]:
        """Send two hints, in any order."""
        other = self.spoiled(item)
        if self.rng.random() < 0.5:
            other.hint.source_id ^= 1
        self.strike(1)
        return self.rng.sample([item, other], 2)


class HintsSpoiled(_Hinted):
    """Spoils the orchestrator's hints: from some token on they are wrong, and sure of it."""

    def instead_of(self, item: RunItem, run: _Run | None) -> list[RunItem]:
        """Send another hint."""
        self.strike(1)
        return [self.spoiled(item)]


def _item(key: Key, hint: hint_pb2.Hint) -> RunItem:
    return RunItem(handle=key[0], round=key[1], hint=hint)
