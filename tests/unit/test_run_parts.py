"""Parts of runs: the checks of their steps, and the division of their times."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.peers.checking.faults import PeerFaultError
from orchestrator.peers.checking.steps import check_steps
from orchestrator.peers.run_parts import merged, part_of
from orchestrator.speculation.proposal import Source
from slipstream.rpc.wire import duration
from slipstream.wire.v1 import hint_pb2, model_pb2, verifier_pb2

DRAFT, BRANCH = hint_pb2.HINT_SOURCE_DRAFT, hint_pb2.HINT_SOURCE_BRANCH


def hinted(**values: Any) -> verifier_pb2.RunStep:
    """A step of three hint tokens, of which two were accepted."""
    return verifier_pb2.RunStep(**{"token_count": 3, "hint_count": 3, "accepted_count": 2, "source": DRAFT} | values)


def result(*steps: verifier_pb2.RunStep, **times: float) -> verifier_pb2.RunResult:
    return verifier_pb2.RunResult(
        position=5,
        tokens=range(sum(step.token_count for step in steps)),
        steps=steps,
        timing=model_pb2.ItemTiming(**{name: duration(value) for name, value in times.items()}),
    )


STRETCH = verifier_pb2.RunStep(token_count=4)


@pytest.mark.parametrize(
    "step",
    [
        STRETCH,
        hinted(),
        hinted(source=BRANCH, accepted_count=3),
        hinted(token_count=2),
        hinted(token_count=1, accepted_count=0, held=duration(0.5)),
    ],
)
def test_steps_that_a_verifier_can_make_are_right(step: verifier_pb2.RunStep) -> None:
    check_steps(result(STRETCH, step), 1.0)


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (verifier_pb2.RunStep(token_count=0), "token_count"),
        (verifier_pb2.RunStep(token_count=-1), "token_count"),
        (hinted(hint_count=-1), "hint_count"),
        (hinted(accepted_count=-1), "accepted_count"),
        (hinted(hint_count=1), "accepted_count"),
        (hinted(accepted_count=1), "token_count"),
        (hinted(accepted_count=3, token_count=2), "accepted_count"),
        (verifier_pb2.RunStep(token_count=4, accepted_count=1), "accepted_count"),
        (hinted(source=hint_pb2.HINT_SOURCE_UNSPECIFIED), "source"),
        (hinted(source=99), "source"),
        (hinted(forward=duration(2.0)), "forward"),
        (hinted(held=duration_pb2.Duration(seconds=-1)), "held"),
    ],
)
def test_a_step_that_no_verifier_can_make_is_a_fault(step: verifier_pb2.RunStep, field: str) -> None:
    told = result(hinted(), hinted(), step)
    with pytest.raises(PeerFaultError, match=f"steps.{field}"):
        check_steps(told, 1.0)


def test_steps_account_for_all_tokens() -> None:
    told = result(STRETCH, hinted())
    told.tokens.append(1)
    with pytest.raises(PeerFaultError, match=r"steps.token_count must add up to 8"):
        check_steps(told, 1.0)


def test_a_branch_counts_as_its_draft() -> None:
    sources = [step.source for step in part_of(result(hinted(source=BRANCH), STRETCH), 0.0, 1.0).steps]
    assert sources == [Source.DRAFT, None]


SECONDS = st.floats(0, 0.2)
STEPS = st.lists(
    st.builds(
        lambda forward, held, count: verifier_pb2.RunStep(
            token_count=count, forward=duration(forward), held=duration(held)
        ),
        SECONDS,
        SECONDS,
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=5,
)


@given(STEPS, SECONDS, SECONDS)
def test_steps_share_the_whole_interval_of_their_part(
    steps: list[verifier_pb2.RunStep], queue: float, network: float
) -> None:
    forward, held = (sum(getattr(step, name).ToNanoseconds() / 1e9 for step in steps) for name in ("forward", "held"))
    total = queue + forward + held
    told = result(*steps, forward=forward, queue=queue + held, total=total)
    part = part_of(told, 10.0, 10.0 + total + network)
    timings = [step.timing for step in part.steps]
    assert sum(timing.forward for timing in timings) == pytest.approx(forward, abs=1e-6)
    assert sum(timing.queue for timing in timings) == pytest.approx(queue, abs=1e-6)
    assert sum(timing.total for timing in timings) + held == pytest.approx(total, abs=1e-6)
    assert sum(timing.round_trip for timing in timings) + held == pytest.approx(total + network, abs=1e-6)
    assert all(timing.forward <= timing.total + 1e-6 <= timing.round_trip + 2e-6 for timing in timings)


def test_consecutive_parts_become_one_with_all_steps() -> None:
    first = part_of(result(hinted(), forward=0.1, total=0.2), 0.0, 1.0)
    second = part_of(result(STRETCH, forward=0.3, total=0.4), 1.0, 1.5)
    both = merged([first, second])
    assert both.tokens == (*first.tokens, *second.tokens) and both.steps == (*first.steps, *second.steps)
    assert (both.timing.forward, both.timing.round_trip) == pytest.approx((0.4, 1.5)) and both.arrived == 1.5


@pytest.mark.parametrize("round_trip", [0.5, 0.05, 0.01], ids=["late", "early", "in a burst"])
def test_a_part_whose_clocks_disagree_takes_no_longer_than_it_took(round_trip: float) -> None:
    told = result(hinted(held=duration(0.2)), hinted(held=duration(0.2)), forward=0.02, queue=0.4, total=0.3)
    part = part_of(told, 0.0, round_trip)
    taken = sum(step.held + step.timing.round_trip for step in part.steps)
    assert taken == pytest.approx(round_trip, abs=1e-6)
    assert min(step.timing.round_trip for step in part.steps) >= 0


def test_a_stretch_without_hints_goes_on_in_the_next_part() -> None:
    plain, used = verifier_pb2.RunStep(token_count=1), hinted()
    results = [result(plain), result(plain, used), result(plain), result(plain)]
    part = merged([part_of(each, now, now + 0.5) for now, each in enumerate(results)])
    assert [step.token_count for step in part.steps] == [2, 3, 2]
    assert [step.hint_count for step in part.steps] == [0, 3, 0]
    assert sum(step.timing.round_trip for step in part.steps) == pytest.approx(part.timing.round_trip)
    held = result(verifier_pb2.RunStep(token_count=1, held=duration(0.1)), total=0.2)
    assert len(merged([part_of(each, 0.0, 1.0) for each in (results[0], held)]).steps) == 2  # its wait is its own
