"""A whole plan: the places that were found, the best of each kind, and their rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.planning.devices import Group
from slipstream.planning.errors import PlanError
from slipstream.planning.placing import Pair, Placement, fastest, placements
from slipstream.planning.speed import Speed, speeds

MOST_SESSIONS = 512


@dataclass(frozen=True, slots=True)
class Question:
    """A pair, devices and a load to plan for."""

    pair: Pair
    groups: Sequence[Group]
    session_count: int
    acceptances: Sequence[float]
    round_trips: Sequence[float]
    """Seconds from a draft on its own device to the target and back."""

    def __post_init__(self) -> None:
        """PlanError if a number cannot be planned with."""
        if not 1 <= self.session_count <= MOST_SESSIONS:
            raise PlanError(f"--sessions is 1 to {MOST_SESSIONS}, not {self.session_count}")
        if self.pair.context < 1:
            raise PlanError(f"--context is at least 1, not {self.pair.context}")
        for role, model in (("target", self.pair.target), ("draft", self.pair.draft)):
            if self.pair.context > model.shape.context_length:
                raise PlanError(
                    f"--context {self.pair.context} is more than the {model.shape.context_length} tokens of the {role} "
                    f"{model.shape.name}"
                )


@dataclass(frozen=True, slots=True)
class Chosen:
    """One way to run the pair, and its rates."""

    placement: Placement
    speeds: Sequence[Speed]

    def at(self, acceptance: float, round_trip: float) -> Speed | None:
        """Return the rates of one cell."""
        return next((s for s in self.speeds if (s.acceptance, s.round_trip) == (acceptance, round_trip)), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """Answers."""

    question: Question
    placements: Sequence[Placement]
    apart: Chosen | None = None
    """The draft on a device of its own; None if that does not hold the sessions."""
    shared: Chosen | None = None
    """The draft on the target's first device; None likewise."""

    @property
    def ways(self) -> list[Chosen]:
        """The ways that hold the sessions."""
        return [way for way in (self.apart, self.shared) if way is not None]


def make_plan(question: Question, done: Callable[[], None] = lambda: None) -> Plan:
    """Place the pair and simulate its rates. ``done`` is called after each simulation."""
    found = placements(question.pair, question.groups)
    ways = [_chosen(question, found, is_shared, done) for is_shared in (False, True)]
    return Plan(question, found, *ways)


def simulation_count(question: Question) -> int:
    """Return the number of simulations of a plan, at most."""
    return len(question.acceptances) * (len(question.round_trips) + 1)


def _chosen(question: Question, found: Sequence[Placement], is_shared: bool, done: Callable[[], None]) -> Chosen | None:
    placement = fastest(question.pair, found, question.session_count, is_shared=is_shared)
    if placement is None:
        return None
    trips = (0.0,) if is_shared else question.round_trips
    return Chosen(
        placement, speeds(question.pair, placement, question.session_count, question.acceptances, trips, done)
    )
