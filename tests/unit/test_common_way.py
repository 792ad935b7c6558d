"""All sessions of a pair run rounds one way, and change it together."""

from __future__ import annotations

from orchestrator.speculation.common import CommonWay
from orchestrator.speculation.plan import Overlap

NONE, ENUMERATE, AHEAD = Overlap.NONE, Overlap.ENUMERATE, Overlap.RUN_AHEAD


def test_the_best_forecast_wins_and_is_kept_while_it_is_not_clearly_beaten() -> None:
    common = CommonWay()
    assert common.choose({NONE: 50, ENUMERATE: 60, AHEAD: 40}, 1) is ENUMERATE
    assert common.choose({NONE: 61, ENUMERATE: 60, AHEAD: 40}, 1) is ENUMERATE
    assert common.choose({NONE: 66, ENUMERATE: 60, AHEAD: 40}, 1) is NONE


def test_one_session_of_many_does_not_change_the_way_alone() -> None:
    common = CommonWay()
    for _ in range(100):
        common.choose({NONE: 50, ENUMERATE: 60, AHEAD: 40}, 8)
    assert common.choose({NONE: 80, ENUMERATE: 60, AHEAD: 40}, 8) is ENUMERATE
    ways = [common.choose({NONE: 80, ENUMERATE: 60, AHEAD: 40}, 8) for _ in range(40)]
    assert ways[-1] is NONE and ways.index(NONE) > 1


def test_a_new_way_is_kept_until_it_has_shown_what_it_brings() -> None:
    common = CommonWay()
    common.choose({NONE: 50, ENUMERATE: 60, AHEAD: 40}, 8)
    assert not common.shows(ENUMERATE), "rounds of before are still under way"
    ways = [common.choose({NONE: 90, ENUMERATE: 60, AHEAD: 40}, 8) for _ in range(28)]
    assert set(ways) == {ENUMERATE}
    assert common.shows(ENUMERATE) and not common.shows(NONE)
    assert common.choose({NONE: 90, ENUMERATE: 60, AHEAD: 40}, 8) is NONE


def test_a_way_not_far_off_gets_a_second_look_and_a_hopeless_one_none() -> None:
    common = CommonWay()
    ways = [common.choose({NONE: 50, ENUMERATE: 60, AHEAD: 20}, 2) for _ in range(2000)]
    assert 0 < ways.count(NONE) < 100 and AHEAD not in ways
