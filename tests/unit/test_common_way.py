"""All sessions of a pair run rounds one way, and change it together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.plan import Overlap, load_of

NONE, ENUMERATE, AHEAD = Overlap.NONE, Overlap.ENUMERATE, Overlap.RUN_AHEAD


def chosen(
    common: CommonWay,
    rates: dict[Overlap | None, float],
    session_count: int,
    load: int,
    seen: Mapping[Overlap, float] = MappingProxyType({}),
) -> Overlap | None:
    """The way of one more round."""
    common.begin_round()
    return common.choose(rates, session_count, load, seen)


def test_the_best_forecast_wins_and_is_kept_while_it_is_not_clearly_beaten() -> None:
    common = CommonWay()
    assert chosen(common, {NONE: 50, ENUMERATE: 60, AHEAD: 40}, 1, load_of(1)) is ENUMERATE
    assert chosen(common, {NONE: 59, ENUMERATE: 60, AHEAD: 40}, 1, load_of(1)) is ENUMERATE
    assert chosen(common, {NONE: 66, ENUMERATE: 60, AHEAD: 40}, 1, load_of(1)) is NONE


def test_one_session_of_many_does_not_change_the_way_alone() -> None:
    common = CommonWay()
    for _ in range(100):
        chosen(common, {NONE: 50, ENUMERATE: 60, AHEAD: 40}, 8, load_of(8))
    assert chosen(common, {NONE: 80, ENUMERATE: 60, AHEAD: 40}, 8, load_of(8)) is ENUMERATE
    ways = [chosen(common, {NONE: 80, ENUMERATE: 60, AHEAD: 40}, 8, load_of(8)) for _ in range(40)]
    assert ways[-1] is NONE and ways.index(NONE) > 1


def test_a_new_way_is_kept_until_it_has_shown_what_it_brings() -> None:
    common = CommonWay()
    chosen(common, {NONE: 50, ENUMERATE: 60, AHEAD: 40}, 8, load_of(8))
    ways = [chosen(common, {NONE: 90, ENUMERATE: 60, AHEAD: 40}, 8, load_of(8)) for _ in range(28)]
    assert set(ways) == {ENUMERATE}
    assert chosen(common, {NONE: 90, ENUMERATE: 60, AHEAD: 40}, 8, load_of(8)) is NONE


def test_where_none_beats_plain_decoding_all_decode_plainly_and_try_at_once_ever_more_seldom() -> None:
    common = CommonWay()
    ways = [chosen(common, {NONE: 20, ENUMERATE: 25, None: 30}, 4, load_of(4)) for _ in range(4 * 800)]
    tries = [index for index, way in enumerate(ways) if way is not None]
    runs = [[tries[0]]]
    for index in tries[1:]:
        if index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    assert [len(run) for run in runs] == [8] * len(runs), "two rounds of each"
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(runs)]
    assert len(gaps) >= 2 and all(later > 1.9 * earlier for earlier, later in itertools.pairwise(gaps))


def test_a_way_that_others_run_anyway_is_not_tried() -> None:
    common = CommonWay()
    rates: dict[Overlap | None, float] = {NONE: 50, ENUMERATE: 80, AHEAD: 49, None: 30}
    seen = {NONE: 5.0}

    def tries(rounds: int, others: float) -> int:
        count = 0
        for _ in range(rounds):
            seen[NONE] += others
            count += chosen(common, rates, 1, 0, seen=dict(seen)) is NONE
        return count

    assert tries(200, others=0.5) == 0
    assert tries(2000, others=0.0) == 2


@pytest.mark.parametrize(("best", "other"), [(NONE, AHEAD), (ENUMERATE, NONE)])
@pytest.mark.parametrize("session_count", [1, 4])
def test_another_way_to_draft_is_tried_soon_and_then_ever_more_seldom(
    session_count: int, best: Overlap, other: Overlap
) -> None:
    """What is known of a way that is not taken may have been true of a slow minute only."""
    common, load = CommonWay(), load_of(session_count)
    rates: dict[Overlap | None, float] = {NONE: 50, ENUMERATE: 48, AHEAD: 49, None: 30, best: 80}
    seen: list[tuple[Overlap | None, bool]] = []
    for _ in range(600 * session_count):
        counts = {way: [each for each, _ in seen].count(way) / session_count for way in (NONE, ENUMERATE, AHEAD)}
        seen.append((chosen(common, rates, session_count, load, seen=counts), common.trying))
    assert {*seen} == {(best, False), (other, True), (None, True)}
    waits = waits_between(seen, other, session_count)
    assert len(waits) == 3 and waits[0] <= 24 * session_count and all(b > 3 * a for a, b in itertools.pairwise(waits))


def waits_between(seen: list[tuple[Overlap | None, bool]], way: Overlap | None, session_count: int) -> list[int]:
    """Rounds before each try of a way, all of which take two rounds of each session."""
    runs = [
        (is_try, [*indices])
        for is_try, indices in itertools.groupby(range(len(seen)), lambda i: seen[i] == (way, True))
    ]
    tries = [indices for is_try, indices in runs if is_try]
    assert {len(indices) for indices in tries} == {2 * session_count}
    ends = [0, *(indices[-1] for indices in tries)]
    return [indices[0] - end for indices, end in zip(tries, ends, strict=False)]


@pytest.mark.parametrize("session_count", [1, 4])
def test_plain_decoding_is_tried_where_drafting_pays_and_then_ever_more_seldom(session_count: int) -> None:
    """It may have been slow for a minute, or beside others that drafted."""
    common, load = CommonWay(), load_of(session_count)
    seen = [
        (chosen(common, {NONE: 80, None: 30}, session_count, load), common.trying) for _ in range(2100 * session_count)
    ]
    assert {*seen} == {(NONE, False), (None, True)}
    waits = waits_between(seen, None, session_count)
    assert len(waits) == 3 and 80 * session_count < waits[0] <= 100 * session_count
    assert all(b > 3 * a for a, b in itertools.pairwise(waits))


def test_where_a_try_shows_that_plain_decoding_is_as_fast_all_stay_with_it() -> None:
    common = CommonWay()
    tried = any(chosen(common, {NONE: 80, None: 30}, 4, load_of(4)) is None for _ in range(1000))
    assert tried and common.trying
    ways = [chosen(common, {NONE: 80, None: 100}, 4, load_of(4)) for _ in range(60)]
    assert {*ways} == {None} and not common.trying


def test_where_there_is_no_other_way_to_draft_none_is_tried() -> None:
    common = CommonWay()
    assert {chosen(common, {NONE: 50, None: 30}, 1, 0) for _ in range(200)} == {NONE, None}


def test_one_whose_draft_is_right_keeps_it_for_all_where_the_others_may_do_without() -> None:
    common = CommonWay()
    for index in range(400):
        chosen(common, {NONE: 20 if index % 4 else 60, None: 30}, 4, load_of(4))
    assert common.way is NONE


def test_what_is_known_of_a_load_is_there_when_it_comes_back() -> None:
    common = CommonWay()
    for _ in range(100):
        chosen(common, {NONE: 50, ENUMERATE: 60}, 1, load_of(1))
    for _ in range(1000):
        chosen(common, {NONE: 30, ENUMERATE: 20}, 32, load_of(32))
    assert common.way is NONE
    assert chosen(common, {NONE: 50, ENUMERATE: 60}, 1, load_of(1)) is ENUMERATE
    assert chosen(common, {NONE: 30, ENUMERATE: 20}, 30, load_of(30)) is NONE


def test_overlapping_must_bring_something_to_be_worth_a_draft_at_work() -> None:
    assert chosen(CommonWay(), {NONE: 60, ENUMERATE: 61, AHEAD: 40}, 8, load_of(8)) is NONE
    assert chosen(CommonWay(), {NONE: 60, ENUMERATE: 63, AHEAD: 40}, 8, load_of(8)) is ENUMERATE


def test_forecasts_of_different_times_are_not_compared() -> None:
    common = CommonWay()
    for _ in range(100):
        chosen(common, {NONE: 20, ENUMERATE: 15}, 8, load_of(8))
    for _ in range(8):  # all has become faster, and plain decoding can be weighed for the first time
        chosen(common, {NONE: 100, ENUMERATE: 75, None: 50}, 8, load_of(8))
    assert common.way is NONE


def test_a_new_load_goes_on_in_the_way_of_the_last_until_all_have_asked() -> None:
    common = CommonWay()
    chosen(common, {NONE: 50, ENUMERATE: 60}, 1, load_of(1))
    ways = [chosen(common, {NONE: 50, ENUMERATE: 30}, 8, load_of(8)) for _ in range(8)]
    assert ways == [ENUMERATE] * 7 + [NONE]
