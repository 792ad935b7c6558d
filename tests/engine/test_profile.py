"""What a service measures of its model as it starts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Append, Appended, Engine


def engine(settings: str, *, single_rows: bool = False) -> Engine:
    backend = ArithmeticBackend(ArithmeticSettings.parse(f"arithmetic:{settings}"), single_rows=single_rows)
    return Engine(backend, kv_memory_mib=1)


def test_a_slow_model_is_measured_for_longer_than_a_quick_one() -> None:
    slow = engine("forward_ms=10")
    points = slow.profile(0.015)
    assert [count for count, _ in points] == [1, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256]
    assert all(seconds >= 0.01 for _, seconds in points)
    assert slow.step_count == 0 and slow.pool.counts().held == 0


def test_a_profile_ends_at_what_its_context_holds() -> None:
    assert [count for count, _ in engine("context=20").profile(1)] == [1, 8, 16]


@pytest.mark.parametrize(("forward_ms", "run_of"), [(1, 8), (10, 1)])
def test_a_drafts_lone_token_is_measured_in_a_run_where_a_step_is_more_than_its_forward(
    forward_ms: int, run_of: int
) -> None:
    draft = engine(f"forward_ms={forward_ms}", single_rows=True)
    counts, steps = [], draft.steps

    def watched(appends: Sequence[Append], count: int) -> list[list[Appended]]:
        if appends[0].token_count == 1:
            counts.append(count)
        return steps(appends, count)

    draft.steps = watched  # type: ignore[assignment, method-assign]
    (_, lone), (_, several), *_ = draft.profile(0.015)
    assert counts[-1] == run_of
    assert lone >= forward_ms / 1e3 and several >= forward_ms / 1e3, "a step of it, not the run"
    assert lone < 8 * forward_ms / 1e3
    assert draft.step_count == 0 and draft.pool.counts().held == 0


def test_what_is_over_in_no_time_is_tried_more_often() -> None:
    """Two trials after a start say how long a process takes to get going."""
    quick, trials = engine("forward_ms=0"), 0
    step = quick.step

    def counted(appends: Sequence[Append]) -> list[Appended]:
        nonlocal trials
        trials += appends[0].token_count == 1
        return step(appends)

    quick.step = counted  # type: ignore[method-assign]
    quick.profile(0.015)
    assert trials > 2
