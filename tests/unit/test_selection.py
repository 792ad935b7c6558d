"""The hint tokens of a step are the best prefix of all runs' tokens, as brute force finds it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slipstream.engine.hinting.calibration import survivals
from slipstream.engine.hinting.selection import Offer, Selection, best_prefix, equal_counts, select
from slipstream.step_times import StepTimes

CHEAP = StepTimes([(1, 0.0252), (512, 0.1274)])
"""25 ms and 0.2 ms a row."""


def offers(*odds: Sequence[float]) -> list[Offer]:
    return [Offer(survivals(one, 1.0)) for one in odds]


def rate(chosen: Selection, given: Sequence[Offer], runs: int, times: StepTimes) -> float:
    expected = sum(sum(one.survivals[:count]) for one, count in zip(given, chosen.counts, strict=True))
    return (runs + expected) / times.seconds(runs + sum(chosen.counts))


def test_the_best_prefix_is_that_of_brute_force() -> None:
    draw = random.Random(11)
    for _ in range(300):
        values = sorted((draw.random() for _ in range(draw.randrange(30))), reverse=True)
        multiple, base_rows = draw.choice([1, 4, 8, 128]), draw.randrange(1, 20)
        times = StepTimes([(1, draw.uniform(0.001, 0.03)), (256, draw.uniform(0.03, 0.3))], multiple)
        count, found = best_prefix(values, base_rows, base_rows, times)
        rates = [(base_rows + sum(values[:n])) / times.seconds(base_rows + n) for n in range(len(values) + 1)]
        assert found == pytest.approx(max(rates))
        assert rates[count] == pytest.approx(max(rates))


def test_no_other_prefixes_of_two_runs_are_better() -> None:
    draw = random.Random(13)
    for _ in range(100):
        given = offers(*[[draw.uniform(0.2, 1) for _ in range(draw.randrange(6))] for _ in range(2)])
        times = StepTimes([(1, 0.003), (64, draw.uniform(0.01, 0.1))], draw.choice([1, 8]))
        best = select(given, 2, 0, 512, times)
        for first in range(len(given[0].survivals) + 1):
            for second in range(len(given[1].survivals) + 1):
                other = Selection([first, second], 0)
                assert rate(other, given, 2, times) <= rate(best, given, 2, times) * (1 + 1e-9)
        assert best.rate == pytest.approx(rate(best, given, 2, times))


def test_every_run_has_its_row_before_any_hint() -> None:
    assert select(offers([0.9] * 8, [0.9] * 8), 96, 0, 96, CHEAP).counts == [0, 0]
    assert sum(select(offers([0.9] * 8, [0.9] * 8), 90, 3, 96, CHEAP).counts) == 3
    assert select(offers([0.9]), 8, 600, 512, CHEAP).counts == [0]


def test_hints_are_dropped_first_where_a_row_costs_what_it_brings() -> None:
    bound_by_rows = StepTimes([(1, 0.001), (512, 0.512)])
    assert select(offers([0.9] * 8), 32, 0, 512, bound_by_rows).counts == [0]
    assert select(offers([0.9] * 8), 1, 0, 512, CHEAP).counts == [8]


def test_rows_in_a_stair_that_is_paid_for_are_free() -> None:
    steep = StepTimes([(8, 0.01), (16, 0.02)], row_multiple=8)
    assert select(offers([0.1] * 20), 1, 0, 512, steep).counts == [2]  # down to the least survival
    assert select(offers([0.6] * 3, [0.9, 0.3]), 2, 0, 512, steep).counts == [3, 2]


def test_a_fixed_length_is_verified_whatever_its_rows_cost() -> None:
    bound_by_rows = StepTimes([(1, 0.001), (512, 0.512)])
    fixed = Offer([0.1] * 4, is_fixed=True)
    assert select([fixed, *offers([0.5] * 4)], 32, 0, 512, bound_by_rows).counts == [4, 0]
    assert select([fixed], 32, 0, 34, bound_by_rows).counts == [2]


def test_a_draft_without_guesses_has_nothing_to_choose() -> None:
    assert best_prefix([], 0.0, 0, CHEAP) == (0, 0.0)
    assert best_prefix([0.1], 0.0, 0, CHEAP)[0] == 1


def test_windows_are_equal_where_each_length_is_a_forward_of_its_own() -> None:
    times = StepTimes([(1, 0.010), (2, 0.010), (100, 0.020)], 2)
    good, poor = Offer([0.95**power for power in range(1, 9)]), Offer([0.2, 0.04])
    assert equal_counts([good, good, good], 3, 2, 40, times) == [8, 8, 8]
    unlikely = Offer([0.02, 0.01])
    assert equal_counts([unlikely, unlikely], 2, 2, 40, times) == [1, 1]  # the second row is there anyway
    assert equal_counts([good, poor], 12, 2, 40, times) == [1, 1]  # another forward for one is not worth it
    assert equal_counts([good] * 11 + [poor], 12, 2, 40, times) == [8] * 11 + [0]
    assert equal_counts([good, good], 2, 2, 3, times) == [3, 3]
    assert equal_counts([good, good], 2, 2, 0, times) == [0, 0]
