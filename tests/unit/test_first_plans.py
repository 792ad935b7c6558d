"""Plans that sessions take over from one another: seldom at first, and often once weighings
agree."""

from __future__ import annotations

from orchestrator.speculation.first_plans import FirstPlans
from orchestrator.speculation.plan import Overlap, RoundPlan

WAITING = RoundPlan(8)
OVERLAPPED = RoundPlan(8, Overlap.ENUMERATE, 4)


def uses(plans: FirstPlans) -> int:
    """Count how often a plan is taken until one has to be weighed."""
    count = 0
    while plans.take("key") is not None:
        count += 1
    return count


def test_a_plan_is_used_twice_as_often_each_time_that_a_weighing_agrees() -> None:
    plans = FirstPlans()
    counts = []
    for length in (8, 4, 8, 8, 6, 8, 8):  # another length is the same way
        plans.keep("key", RoundPlan(length))
        counts.append(uses(plans))
    assert counts == [1, 2, 4, 8, 16, 16, 16]


def test_another_way_starts_again() -> None:
    plans = FirstPlans()
    for _ in range(5):
        plans.keep("key", WAITING)
    plans.keep("key", OVERLAPPED)
    assert plans.take("key") is OVERLAPPED and plans.take("key") is None
    plans.keep("key", WAITING)
    assert uses(plans) == 1


def test_what_is_known_of_one_says_nothing_of_another() -> None:
    plans = FirstPlans()
    plans.keep("one", WAITING)
    assert plans.take("another") is None
    plans.keep("another", OVERLAPPED)
    assert plans.take("one") is WAITING


def test_only_so_many_are_kept() -> None:
    plans = FirstPlans()
    for key in range(1_000):
        plans.keep(key, WAITING)
    assert sum(plans.take(key) is not None for key in range(1_000)) <= 64
