"""How a turn's first round begins where the draft overlaps: both models have the prompt to read yet. Pure.

Either verification starts at once, and the draft meanwhile prepares for what it may answer; or the round waits for a
proposal, which is then verified together with the prompt, and a verification is saved. With P the time of a plain proposal,
B of branches, V(n) of a verification of n tokens, V' of one that has the prompt beside them, h the odds of a branch that
comes true and S_i those that i draft tokens survive::

    at once     2 + h (S_1 .. S_k) + (1 - h) (S_1 .. S_r)  in  max(V'(1), B(k)) + (1 - h) P(r) + V(1 + k)
    waiting     1 + (S_1 .. S_r)                           in  P(r) + V'(1 + r)

At the rate that the rounds to come should bring, the one that leaves more tokens wins. So nobody waits for a draft that reads a
long prompt, or that is far away.
"""

from __future__ import annotations

from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import Overlap, RoundPlan


def waits_for_proposal(
    pair: PairKnowledge, home: VerifierKnowledge, plan: RoundPlan, survivals: list[float], prompt_length: int
) -> bool:
    """Whether a session that lives on ``home`` waits, by a plan that enumerates; ``survivals`` for its draft length or more,
    ``prompt_length`` tokens not read yet."""
    if plan.rate is None:
        return False
    regime, sessions = pair.regime(Overlap.ENUMERATE), pair.session_count
    alone, beside = pair.drafting.alone, pair.drafting.beside
    length, recovery = plan.draft_length, plan.recovery_length
    around, read = pair.drafting.around.at(regime), alone.at(prompt_length)
    proposal = around + recovery * alone.at(sessions)
    branches = around + read + (1 + length) * beside.at(sessions * plan.branch_count)
    verify, prompt = home.costs.rounds(home.regime(Overlap.ENUMERATE)), home.costs.beside_a_round(prompt_length)
    missed = 1 - pair.hits.at(plan.branch_count)
    sums = sum(survivals[:length]), sum(survivals[:recovery])
    at_once = 2 + (1 - missed) * sums[0] + missed * sums[1]
    at_once -= plan.rate * (max(verify[1] + prompt, branches) + missed * proposal + verify[1 + length])
    waiting = 1 + sums[1] - plan.rate * (proposal + read + verify[1 + recovery] + prompt)
    return bool(waiting > at_once)
