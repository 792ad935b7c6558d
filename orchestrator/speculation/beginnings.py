"""How a turn's first round begins where the draft overlaps: both models have the prompt to read
yet. Pure.

Either verification starts at once, and the draft meanwhile prepares for what it may answer; or the
round waits for a proposal, which is then verified together with the prompt, and a verification is
saved. With P the time of a plain proposal, B of branches, V(n) of a verification of n tokens, V' of
one that has the prompt beside them, h the odds of a branch that comes true, g those that the turn
goes on and N(k) the tokens that a round of k draft tokens brings::

    at once     1 + g (h N(k) + (1 - h) N(r))  in  max(V'(1), B(k)) + g ((1 - h) P(r) + V(1 + k))
    waiting     N(r)                           in  P(r) + V'(1 + r)

each as far as the turn's end leaves it (`ending`). At the rate that the rounds to come should
bring, the one that leaves more tokens wins. So no round waits for a draft that reads a long prompt,
or that is far away.
"""

from __future__ import annotations

from orchestrator.speculation.acceptance import AcceptanceEstimate
from orchestrator.speculation.ending import ending_of
from orchestrator.speculation.knowledge import PairKnowledge, VerifierKnowledge
from orchestrator.speculation.plan import Overlap, RoundPlan


def waits_for_proposal(
    pair: PairKnowledge, home: VerifierKnowledge, plan: RoundPlan, acceptance: AcceptanceEstimate, prompt_length: int
) -> bool:
    """Whether a session that lives on ``home`` waits, by a plan that enumerates, with
    ``prompt_length`` tokens not read yet."""
    if plan.rate is None:
        return False
    regime, sessions = pair.regime(Overlap.ENUMERATE), pair.session_count
    alone, beside = pair.drafting.alone, pair.drafting.beside
    length, recovery = plan.draft_length, plan.recovery_length
    ending = ending_of(pair.turn_length.value)
    around, read = pair.drafting.around.at(regime), alone.at(prompt_length)
    proposal = around + ending.drafted(recovery) * alone.at(sessions)
    branches = around + read + (1 + ending.drafted(length)) * beside.at(sessions * plan.branch_count)
    verify = ending.verified(home.costs.rounds(home.regime(Overlap.ENUMERATE)))
    prompt = home.costs.beside_a_round(prompt_length)
    hit = pair.hits.at(plan.branch_count)
    tokens = ending.tokens(acceptance.survivals(max(length, recovery)))
    at_once = 1 - plan.rate * max(verify[1] + prompt, branches)
    second = (
        hit * tokens[length] + (1 - hit) * tokens[recovery] - plan.rate * ((1 - hit) * proposal + verify[1 + length])
    )
    at_once += ending.going_on * second
    waiting = tokens[recovery] - plan.rate * (proposal + read + verify[1 + recovery] + prompt)
    return waiting > at_once
