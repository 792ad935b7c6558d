"""Tokens a second of a placement, by the simulation that runs the services' own decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from slipstream.planning.placing import Pair, Placement
from slipstream.simulation.scenario import Scenario
from slipstream.simulation.simulation import simulate

MOST_SIMULATED = 32
"""Sessions that are simulated at most: each further one takes time."""
_ROW_LIMIT = Scenario().row_limit
_TOKENS, _LEAST_TOKENS = 200, 24
"""Tokens of a session alone, and fewest of each of many."""
_TRIED = 4
"""Times as many tokens on shared devices, where trials of both ways come first."""
_SEEDS, _FEW = 2, 4
"""Seeds whose mean counts, for so few sessions. More sessions vary less."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates of one placement at one acceptance."""

    acceptance: float
    round_trip: float
    """Seconds from the draft to the target and back."""
    plain: float
    """Tokens a second of all sessions without a draft."""
    hinted: float
    """The same with the draft's hints."""

    @property
    def gain(self) -> float:
        """Return how many times faster the hints make it."""
        return self.hinted / self.plain


def speeds(
    pair: Pair,
    placement: Placement,
    session_count: int,
    acceptances: Sequence[float],
    round_trips: Sequence[float],
    done: Callable[[], None],
) -> list[Speed]:
    """Return the rates for each round trip and acceptance. ``done`` is called after each."""
    found = []
    known = scenario(pair, placement, session_count)
    each = session_count / known.sessions
    for round_trip in round_trips:
        for acceptance in acceptances:
            found.append(_speed(known, each, acceptance, round_trip))
            done()
    return found


def simulated_sessions(session_count: int) -> int:
    """Return the number of sessions that are simulated. Each stands for as many others."""
    return math.ceil(session_count / math.ceil(session_count / MOST_SIMULATED))


def scenario(pair: Pair, placement: Placement, session_count: int) -> Scenario:
    """Return the scenario of a placement, without round trip and acceptance."""
    assumed, simulated = pair.assumed, simulated_sessions(session_count)
    each = session_count / simulated
    verify = placement.target.profile(session_count, pair.context, assumed, assumed.host_seconds, each)
    guess = placement.draft.profile(session_count, pair.context, assumed, assumed.draft_host_seconds, each)
    return Scenario(
        sessions=simulated,
        token_count=max(_LEAST_TOKENS, _TOKENS // simulated) * (_TRIED if placement.is_shared else 1),
        is_shared=placement.is_shared,
        row_limit=max(simulated, round(_ROW_LIMIT / each)),
        verify_profile=verify,
        draft_profile=guess,
    )


def _speed(known: Scenario, each: float, acceptance: float, round_trip: float) -> Speed:
    changed = replace(known, acceptance=acceptance, round_trip=round_trip)
    plain = simulate(replace(changed, is_hinted=False)).tokens_per_second
    seeds = range(1, 1 + (_SEEDS if known.sessions <= _FEW else 1))
    hinted = mean(simulate(replace(changed, seed=seed)).tokens_per_second for seed in seeds)
    return Speed(acceptance, round_trip, plain * each, hinted * each)
