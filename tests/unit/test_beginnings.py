"""A turn's first round begins with whatever leaves more tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.speculation.beginnings import waits_for_proposal
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import Overlap, Regime, RoundPlan

PLAN = RoundPlan(6, Overlap.ENUMERATE, 4, rate=120.0, recovery_length=6)
HERE = "here"
SURVIVALS = [0.8**n for n in range(1, 7)]


def knowledge(*, verify: float, step: float, row: float = 0.0, around: float = 0.0, hits: bool = True) -> PairKnowledge:
    """Of a pair whose verification takes ``verify``, and whose draft's step ``step`` and ``row`` for each row but one."""
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


def waits(pair: PairKnowledge, plan: RoundPlan, survivals: list[float], prompt_length: int) -> bool:
    return waits_for_proposal(pair, pair.verifiers[HERE], plan, survivals, prompt_length)


def test_a_quick_draft_is_waited_for_and_saves_a_verification() -> None:
    assert waits(knowledge(verify=0.025, step=0.001), PLAN, SURVIVALS, 30)


@pytest.mark.parametrize(
    ("pair", "prompt_length"),
    [
        (knowledge(verify=0.025, step=0.006), 30),  # it drafts about as long as a verification takes
        (knowledge(verify=0.025, step=0.001, around=0.08), 30),  # far away
        (knowledge(verify=0.025, step=0.001, row=0.0001), 4000),  # it would have to read the prompt first
    ],
)
def test_a_draft_that_takes_its_time_prepares_while_the_prompt_is_read(pair: PairKnowledge, prompt_length: int) -> None:
    assert not waits(pair, PLAN, SURVIVALS, prompt_length)


def test_where_branches_cost_much_and_seldom_come_true_a_proposal_is_waited_for() -> None:
    slow = {"verify": 0.025, "step": 0.003}
    assert not waits(knowledge(**slow), PLAN, SURVIVALS, 30)
    assert waits(knowledge(**slow, row=0.002, hits=False), replace(PLAN, branch_count=16), SURVIVALS, 30)


def test_a_plan_that_leaves_nothing_open_never_waits() -> None:
    assert not waits(knowledge(verify=0.025, step=0.001), replace(PLAN, rate=None), SURVIVALS, 30)
