"""Figures of two drafts under the same traffic, and which is better beyond noise. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import zip_longest

from slipstream.ratio_sums import RatioSums
from slipstream.v1 import operator_pb2

STANDARD_ERRORS = 2.6
"""Standard errors of a difference from which on it is no noise. Of two equal drafts, chance calls
one in fifty pairs different: there are two figures, each with one in a hundred."""

LEAST_TURNS = 8
"""Turns of each draft before anything is said. Fewer: standard errors mean little."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a draft, or of several together."""

    session_count: int = 0
    turn_count: int = 0
    token_count: int = 0
    acceptance: RatioSums = field(default_factory=RatioSums)
    speed: RatioSums = field(default_factory=RatioSums)
    step_length: RatioSums = field(default_factory=RatioSums)
    drafted: Sequence[int] = ()
    accepted: Sequence[int] = ()

    @classmethod
    def of(cls, message: operator_pb2.DraftFigures) -> Figures:
        """From the wire."""
        return cls(
            message.session_count,
            message.turn_count,
            message.token_count,
            _sums_of(message.acceptance),
            _sums_of(message.speed),
            _sums_of(message.step_length),
            tuple(message.drafted_per_position_counts),
            tuple(message.accepted_per_position_counts),
        )

    def plus(self, other: Figures, sign: int = 1) -> Figures:
        """Return the figures of both, or with a ``sign`` of -1 the difference."""
        return Figures(
            self.session_count + sign * other.session_count,
            self.turn_count + sign * other.turn_count,
            self.token_count + sign * other.token_count,
            self.acceptance.plus(other.acceptance, sign),
            self.speed.plus(other.speed, sign),
            self.step_length.plus(other.step_length, sign),
            _added(self.drafted, other.drafted, sign),
            _added(self.accepted, other.accepted, sign),
        )

    @property
    def position_acceptances(self) -> list[float]:
        """Share of the hints' tokens at each position that were accepted."""
        return [accepted / drafted for drafted, accepted in zip(self.drafted, self.accepted, strict=False) if drafted]


def _sums_of(message: operator_pb2.RatioSums) -> RatioSums:
    return RatioSums(*(getattr(message, each.name) for each in fields(RatioSums)))


def _added(own: Sequence[int], others: Sequence[int], sign: int) -> tuple[int, ...]:
    return tuple(a + sign * b for a, b in zip_longest(own, others, fillvalue=0))


class Tally:
    """Figures since the trial began, over all processes. A process that is started again begins to
    count at zero, and what the one before had counted stays."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Figures] = {}
        self._last: dict[tuple[str, str], Figures] = {}
        self._ended: dict[str, Figures] = {}
        """Figures of services that a process has forgotten since."""

    def take(self, processes: Iterable[operator_pb2.ProcessDrafts]) -> None:
        """Take in what the processes report now."""
        for process in processes:
            for draft in process.drafts:
                self._take(process.process_id, draft.address, Figures.of(draft.figures))

    def _take(self, process_id: str, address: str, figures: Figures) -> None:
        key = process_id, address
        last = self._last.get(key)
        if last is None:
            self._first[key] = figures
        elif figures.turn_count < last.turn_count or figures.session_count < last.session_count:
            self._ended[address] = self._ended.get(address, Figures()).plus(last.plus(self._first[key], -1))
            self._first[key] = Figures()
        self._last[key] = figures

    def of(self, addresses: Iterable[str]) -> Figures:
        """Return the figures of drafts together."""
        total = Figures()
        for address in addresses:
            total = total.plus(self._ended.get(address, Figures()))
            for key, last in self._last.items():
                if key[1] == address:
                    total = total.plus(last.plus(self._first[key], -1))
        return total


class Verdict(StrEnum):
    """The result of a trial."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"
    FAILING = "failing"


def judge(new: Figures, old: Figures) -> tuple[Verdict, str]:
    """Return whether the new draft is better beyond noise, and why. Tokens a second decide; if they
    do not differ, tokens a step do, which a busy machine disturbs less."""
    few = min(new.turn_count, old.turn_count)
    if few < LEAST_TURNS:
        return Verdict.UNDECIDED, f"only {few} turns of one of the drafts; {LEAST_TURNS} are the least"
    for name, one, other in (
        ("tokens a second", new.speed.ratio, old.speed.ratio),
        ("tokens a step", new.step_length.ratio, old.step_length.ratio),
    ):
        if one is None or other is None:
            continue
        difference, error = one.value - other.value, math.hypot(one.error, other.error)
        if abs(difference) > STANDARD_ERRORS * error:
            verdict = Verdict.BETTER if difference > 0 else Verdict.WORSE
            return verdict, f"{name}: {one.value:.2f} against {other.value:.2f}, standard error {error:.2g}"
    return Verdict.UNDECIDED, "neither tokens a second nor tokens a step differ beyond noise"
