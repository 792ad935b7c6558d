"""Plans of sessions' first rounds, for others that know no more: where answers are short, a
weighing for each is a twentieth of them. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from orchestrator.speculation.plan import RoundPlan

_MOST_USES = 16
"""Most uses of a plan until it is weighed again. At first it is used once, and twice as often each
time that a weighing finds the same way: what a pair's first rounds show is little."""

_MOST = 64


class FirstPlans:
    """By all that a weighing would look at of a session that has not seen anything yet."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, tuple[RoundPlan, int, int]] = {}
        """With how often each may be used still, and in all."""

    def take(self, key: Hashable) -> RoundPlan | None:
        """The plan of another one, if it was made not many sessions ago."""
        plan, left, uses = self._plans.get(key, (None, 0, 0))
        if plan is None or not left:
            return None
        self._plans[key] = plan, left - 1, uses
        return plan

    def keep(self, key: Hashable, plan: RoundPlan) -> None:
        """A session has weighed."""
        before, _, uses = self._plans.get(key, (None, 0, 0))
        uses = min(2 * uses, _MOST_USES) if before is not None and before.way is plan.way else 1
        if len(self._plans) >= _MOST:
            self._plans.clear()
        self._plans[key] = plan, uses, uses
