"""A turn's first round begins with the sequence that leaves more tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.speculation.acceptance import AcceptanceEstimate
from orchestrator.speculation.beginnings import waits_for_proposal
from orchestrator.speculation.forecasts import Forecasts
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import Overlap, Regime, RoundPlan

PLAN = RoundPlan(6, Overlap.ENUMERATE, 4, rate=120.0, recovery_length=6)
HERE = "here"
ACCEPTANCE = AcceptanceEstimate(0.8)


def knowledge(*, verify: float, step: float, row: float = 0.0, around: float = 0.0, hits: bool = True) -> PairKnowledge:
    """Of a pair whose verification takes ``verify``, and whose draft's step ``step`` and ``row``
    for each row but one."""
    pair = PairKnowledge()
    regime = Regime(Overlap.ENUMERATE)
    for _ in range(50):
        pair.verifiers[HERE].costs.observe(7, 7, verify, verify, regime)
        pair.hits.observe(16, 0 if hits else None)
        for rows in (1, 64):
            seconds = 6 * (step + row * (rows - 1))
            for beside in (False, True):
                pair.drafting.observe(rows, 6, seconds, seconds + around, regime, beside=beside)
    return pair


def waits(pair: PairKnowledge, plan: RoundPlan, prompt_length: int) -> bool:
    return waits_for_proposal(pair, pair.verifiers[HERE], plan, ACCEPTANCE, prompt_length)


def test_a_quick_draft_is_waited_for_and_saves_a_verification() -> None:
    assert waits(knowledge(verify=0.025, step=0.001), PLAN, 30)


@pytest.mark.parametrize(
    ("pair", "prompt_length"),
    [
        (knowledge(verify=0.025, step=0.006), 30),  # it drafts about as long as a verification takes
        (knowledge(verify=0.025, step=0.001, around=0.08), 30),  # far away
        (knowledge(verify=0.025, step=0.001, row=0.0001), 4000),  # it would have to read the prompt first
    ],
)
def test_a_draft_that_takes_its_time_prepares_while_the_prompt_is_read(pair: PairKnowledge, prompt_length: int) -> None:
    assert not waits(pair, PLAN, prompt_length)


@pytest.mark.parametrize(("around", "is_waited_for"), [(0.0, True), (0.08, False)])
def test_a_forecast_counts_the_beginning_that_is_taken(around: float, is_waited_for: bool) -> None:
    pair = knowledge(verify=0.025, step=0.001, around=around)
    forecasts = Forecasts(pair, pair.verifiers[HERE], ACCEPTANCE.survivals(16))
    plan, waiting = forecasts.best(Overlap.ENUMERATE), forecasts.best(Overlap.NONE)
    assert waits(pair, plan, 0) is is_waited_for
    assert (plan.first_rate == waiting.rate) is is_waited_for
    assert is_waited_for or plan.first_rate == pytest.approx(1 / 0.087, rel=0.2), "one token in the time of branches"


def test_where_branches_cost_much_and_seldom_come_true_a_proposal_is_waited_for() -> None:
    slow = {"verify": 0.025, "step": 0.003}
    assert not waits(knowledge(**slow), PLAN, 30)
    assert waits(knowledge(**slow, row=0.002, hits=False), replace(PLAN, branch_count=16), 30)


def test_what_would_be_waited_for_counts_in_full_though_branches_are_short() -> None:
    pair, short = knowledge(verify=0.025, step=0.001, row=0.002), replace(PLAN, draft_length=1)
    assert waits(pair, replace(short, recovery_length=6), 30)
    assert not waits(pair, replace(short, recovery_length=1, rate=40.0), 30)


def test_where_turns_end_soon_the_second_verification_that_waiting_saves_is_seldom_run() -> None:
    pair = knowledge(verify=0.025, step=0.001)
    assert waits(pair, PLAN, 30)
    pair.turn_length.observe(1)
    assert not waits(pair, PLAN, 30)


def test_a_plan_that_leaves_nothing_open_never_waits() -> None:
    assert not waits(knowledge(verify=0.025, step=0.001), replace(PLAN, rate=None), 30)
