"""Acceptance compared with its own last week: counts, change points, findings and advice."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from rich.console import Console

from slipstream.cli.drift_report import as_dict, print_report
from slipstream.cli.output import output
from slipstream.drift.advice import advice
from slipstream.drift.change import Comparison, Demand, Hour, State, compare
from slipstream.drift.findings import Cause, findings_of
from slipstream.drift.variance import overdispersion, variance
from slipstream.ratio_sums import NOTHING, RatioSums, total
from slipstream.v1 import acceptance_pb2

DEMAND = Demand()
OLD, NEW, DRAFT, OTHER_DRAFT = "a" * 64, "b" * 64, "d" * 64, "e" * 64


def turn(drafted: int, accepted: int) -> RatioSums:
    return RatioSums(accepted, drafted, accepted**2, drafted * accepted, drafted**2, 1)


def hour_of(acceptance: float, drafted: int = 800, turns: int = 20) -> RatioSums:
    """An hour of equal turns."""
    each = drafted // turns
    return total(turn(each, round(each * acceptance)) for _ in range(turns))


def drawn(generator: random.Random, acceptance: float, turns: int = 20, unlike: float = 0.0) -> RatioSums:
    """An hour of turns whose own acceptance differs by ``unlike``."""
    found = NOTHING
    for _ in range(turns):
        drafted = generator.randint(10, 70)
        own = min(1.0, max(0.0, generator.gauss(acceptance, unlike)))
        found = found.plus(turn(drafted, sum(generator.random() < own for _ in range(drafted))))
    return found


def series(*parts: tuple[int, Callable[[], RatioSums]], start: int = 1000) -> list[Hour]:
    counts = [make() for length, make in parts for _ in range(length)]
    return [Hour(start + index, each) for index, each in enumerate(counts)]


# --- counts


def test_the_standard_error_is_that_of_a_ratio_over_turns() -> None:
    turns = [(10, 9), (40, 20), (30, 24), (20, 5)]
    counts = total(turn(*each) for each in turns)
    acceptance = 58 / 100
    spread = sum((accepted - acceptance * drafted) ** 2 for drafted, accepted in turns)
    assert counts.value == acceptance
    assert counts.spread(acceptance) == pytest.approx(spread)
    assert variance(counts) == pytest.approx(spread * 4 / 3 / 100**2)


def test_equal_turns_are_no_surer_than_independent_tokens() -> None:
    counts = total(turn(40, 32) for _ in range(25))
    assert variance(counts) == pytest.approx(0.8 * 0.2 / 1000, rel=0.01)
    assert variance(turn(1000, 800)) == math.inf, "one turn shows no spread"
    assert variance(NOTHING) == math.inf and NOTHING.value == 0


def test_counts_add_and_subtract() -> None:
    one, other = turn(10, 9), turn(40, 20)
    assert one.plus(other).plus(other, -1) == one


def test_hours_that_differ_more_than_their_turns_make_the_error_larger() -> None:
    alike = [drawn(random.Random(each), 0.8) for each in range(100)]
    assert overdispersion(alike) < 1.5
    unlike = [drawn(random.Random(each), 0.9 if each % 2 else 0.7) for each in range(100)]
    assert overdispersion(unlike) > 3


# --- change points


def test_a_fall_is_found_at_its_hour() -> None:
    found = compare(series((160, lambda: hour_of(0.8)), (8, lambda: hour_of(0.6))), DEMAND)
    assert (found.state, found.since) == (State.WORSE, 1160)
    assert found.before.value == pytest.approx(0.8) and found.now.value == pytest.approx(0.6)
    assert found.difference == pytest.approx(-0.2) and 0 < found.error < 0.02


def test_a_rise_is_no_drift() -> None:
    found = compare(series((100, lambda: hour_of(0.6)), (8, lambda: hour_of(0.8))), DEMAND)
    assert (found.state, found.since) == (State.BETTER, 1100)


def test_nights_that_are_always_worse_are_no_drift() -> None:
    day, night = (16, lambda: hour_of(0.8)), (8, lambda: hour_of(0.7))
    assert compare(series(*[day, night] * 7), DEMAND).state is State.STEADY
    assert compare(series(*[day, night] * 6, day, (8, lambda: hour_of(0.4))), DEMAND).state is State.WORSE


def test_a_fall_that_is_over_is_no_drift() -> None:
    parts = (100, lambda: hour_of(0.8)), (10, lambda: hour_of(0.5)), (50, lambda: hour_of(0.8))
    assert compare(series(*parts), DEMAND).state is State.STEADY


@pytest.mark.parametrize("later", [0.8, 0.3])
def test_after_a_second_change_now_is_what_came_after_it(later: float) -> None:
    parts = (160, lambda: hour_of(0.9)), (8, lambda: hour_of(0.6)), (4, lambda: hour_of(later))
    found = compare(series(*parts), DEMAND)
    assert (found.state, found.since, found.now_since) == (State.WORSE, 1160, 1168)
    assert found.now.value == pytest.approx(later) and found.before.value == pytest.approx(0.9)
    assert found.difference == pytest.approx(later - 0.9)


def test_three_changes_are_followed_to_the_last_one() -> None:
    parts = [
        (length, lambda value=value: hour_of(value)) for length, value in ((99, 0.9), (9, 0.5), (9, 0.8), (9, 0.6))
    ]
    found = compare(series(*parts), DEMAND)
    assert (found.state, found.since, found.now_since) == (State.WORSE, 1099, 1117)
    assert found.now.value == pytest.approx(0.6)


def test_what_fell_more_than_a_week_ago_is_how_it_is_now() -> None:
    parts = (24, lambda: hour_of(0.8)), (170, lambda: hour_of(0.6))
    found = compare(series(*parts), DEMAND)
    assert found.state is State.WORSE, "eight days of hours still hold the day before"
    assert compare(series(*parts)[24:], DEMAND).state is State.STEADY


def test_a_week_is_168_hours_though_most_of_them_are_empty() -> None:
    hours = [Hour(0, hour_of(0.2, 8000)), Hour(200, hour_of(0.8, 8000)), Hour(210, hour_of(0.8, 8000))]
    assert compare(hours, DEMAND).state is State.STEADY, "hour 0 is not in the week before hour 200 or 210"


def test_hours_that_leave_the_week_do_not_move_the_change() -> None:
    old = [Hour(hour, hour_of(0.99, 200)) for hour in (0, 1)]
    yesterday = [Hour(hour, hour_of(0.99, 200)) for hour in range(146, 150)]
    fallen = [Hour(hour, hour_of(0.43, 4000)) for hour in (170, 171)]
    found = compare([*old, *yesterday, *fallen], Demand(least_tokens=300))
    assert (found.state, found.since, found.before.denominator) == (State.WORSE, 170, 800)


def test_a_small_fall_does_not_matter_and_a_doubtful_one_is_not_told() -> None:
    small = series((160, lambda: hour_of(0.80, 40_000, 1000)), (8, lambda: hour_of(0.775, 40_000, 1000)))
    assert compare(small, DEMAND).state is State.STEADY
    assert compare(small, Demand(least_difference=0.01)).state is State.WORSE
    generator = random.Random(1)
    doubtful = series(
        (10, lambda: drawn(generator, 0.8, unlike=0.25)), (2, lambda: drawn(generator, 0.73, unlike=0.25))
    )
    assert compare(doubtful, DEMAND).state is State.STEADY


@pytest.mark.parametrize(
    "hours",
    [
        [],
        series((1, lambda: hour_of(0.8))),
        series((100, lambda: turn(9, 8))),
        series((1, lambda: turn(100_000, 80_000)), (1, lambda: turn(100_000, 10_000))),
    ],
    ids=["none", "no-week", "few-tokens", "two-turns"],
)
def test_too_few_tokens_are_said_to_be_too_few(hours: Sequence[Hour]) -> None:
    assert compare(hours, DEMAND).state is State.FEW


@pytest.mark.parametrize("unlike", [0.0, 0.2])
def test_a_week_in_which_nothing_changes_is_seldom_called_drift(unlike: float) -> None:
    """At most two of 200 weeks are called drift. One in a thousand or fewer is expected, so the
    odds of a false alarm of this test are below 1 in 500."""
    generator = random.Random(7)
    demand = Demand(least_difference=0.0)
    found = [
        compare(series((60, lambda: drawn(generator, 0.8, 6, unlike))), demand).state is State.WORSE for _ in range(200)
    ]
    assert sum(found) <= 2


# --- findings


def row(
    hour: int, counts: RatioSums, task: str = "chat", target: str = OLD, draft: str = DRAFT, temperature: int = 0
) -> acceptance_pb2.AcceptanceHour:
    made = acceptance_pb2.AcceptanceHour(
        task=task,
        target_fingerprint=target,
        draft=draft,
        temperature_class=temperature,
        turn_count=counts.count,
        draft_token_count=int(counts.denominator),
        accepted_token_count=int(counts.numerator),
        draft_token_square_sum=int(counts.denominator_squares),
        product_sum=int(counts.products),
        accepted_token_square_sum=int(counts.numerator_squares),
    )
    made.hour.FromSeconds(hour * 3600)
    return made


def rows(task: str, acceptances: Sequence[float], **more: str) -> list[acceptance_pb2.AcceptanceHour]:
    return [row(1000 + hour, hour_of(acceptance), task, **more) for hour, acceptance in enumerate(acceptances)]


FELL, STAYED = [0.8] * 40 + [0.5] * 4, [0.8] * 44


def test_each_task_and_temperature_is_compared_with_itself() -> None:
    hot = [row(1000 + hour, hour_of(0.4), temperature=2) for hour in range(43, 44)]
    found = findings_of([*rows("chat", STAYED), *hot, *rows("sums", FELL)], DEMAND)
    told = [(each.task, each.temperature_class, each.comparison.state) for each in found]
    assert told == [("sums", 0, State.WORSE), ("chat", 0, State.STEADY), ("chat", 2, State.FEW)]
    assert found[0].cause is Cause.REQUESTS and found[1].cause is None


def test_the_pair_behind_a_change_is_named() -> None:
    before, after = rows("chat", [0.8] * 40), [row(1040 + hour, hour_of(0.5), target=NEW) for hour in range(4)]
    (found,) = findings_of([*before, *after], DEMAND)
    assert found.cause is Cause.TARGET
    assert (found.pair_before.target, found.pair.target) == (OLD, NEW)
    after = [row(1040 + hour, hour_of(0.5), draft=OTHER_DRAFT) for hour in range(4)]
    (found,) = findings_of([*before, *after], DEMAND)
    assert found.cause is Cause.DRAFT and (found.pair_before.draft, found.pair.draft) == (DRAFT, OTHER_DRAFT)


def changed(*parts: tuple[int, float, str]) -> list[acceptance_pb2.AcceptanceHour]:
    """Return hours with an acceptance and a draft, part by part."""
    hours = [(acceptance, draft) for count, acceptance, draft in parts for _ in range(count)]
    return [row(1000 + at, hour_of(acceptance), draft=draft) for at, (acceptance, draft) in enumerate(hours)]


def test_a_new_draft_that_wins_a_part_back_is_not_taken_for_the_cause() -> None:
    third = "f" * 64
    (found,) = findings_of(changed((40, 0.9, DRAFT), (4, 0.5, DRAFT), (4, 0.8, OTHER_DRAFT)), DEMAND)
    assert found.cause is Cause.REQUESTS and (found.pair_before.draft, found.pair.draft) == (DRAFT, OTHER_DRAFT)
    hours = changed((40, 0.9, DRAFT), (4, 0.5, OTHER_DRAFT), (4, 0.8, third))
    (found,) = findings_of(hours, DEMAND)
    assert found.cause is Cause.DRAFT and (found.pair_before.draft, found.pair.draft) == (DRAFT, third)
    (told,) = advice([found])
    assert "changed at that time, from dddddddd to eeeeeeee" in told
    assert "0.900  0.800  worse" in report(hours)


def test_each_of_two_falls_has_its_cause() -> None:
    (found,) = findings_of(changed((40, 0.9, DRAFT), (4, 0.6, DRAFT), (4, 0.3, OTHER_DRAFT)), DEMAND)
    assert [fall.cause for fall in found.falls] == [Cause.REQUESTS, Cause.DRAFT]
    assert len(advice([found])) == 2


def test_two_drafts_of_one_hour_are_one_task() -> None:
    both = [row(1000 + hour, hour_of(0.8), draft=draft) for hour in range(44) for draft in (DRAFT, OTHER_DRAFT)]
    (found,) = findings_of(both, DEMAND)
    assert found.comparison.state is State.STEADY and found.comparison.before.denominator == 2 * 800 * 43


def test_n_grams_and_predictions_say_nothing_about_a_draft() -> None:
    assert findings_of([*rows("chat", FELL, draft="ngram"), *rows("chat", FELL, draft="prediction")], DEMAND) == []


@pytest.mark.parametrize(
    ("hours", "part"),
    [
        (rows("sums", STAYED), ""),
        (rows("sums", FELL), "Only one task is counted"),
        ([*rows("sums", FELL), *rows("chat", STAYED)], "the requests of sums have changed"),
        ([*rows("sums", FELL), *rows("", FELL), *rows("chat", STAYED)], "the requests of (none), sums have changed"),
        ([*rows("sums", FELL), *rows("chat", FELL)], "the draft is probably broken"),
        (
            [*rows("chat", [0.8] * 40), *(row(1040 + hour, hour_of(0.5), target=NEW) for hour in range(4))],
            "changed at that time, from aaaaaaaa to bbbbbbbb",
        ),
        (
            [*rows("chat", [0.8] * 40), *(row(1040 + hour, hour_of(0.5), draft=OTHER_DRAFT) for hour in range(4))],
            "The draft changed at that time, from dddddddd to eeeeeeee",
        ),
    ],
    ids=["steady", "one-task", "its-requests", "two-tasks", "all", "target", "draft"],
)
def test_the_advice_fits_the_cause(hours: Iterable[acceptance_pb2.AcceptanceHour], part: str) -> None:
    told = advice(findings_of(hours, DEMAND))
    assert told == [] if not part else len(told) == 1 and part in told[0]


# --- the report


def report(hours: Sequence[acceptance_pb2.AcceptanceHour], width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_report(findings_of(hours, DEMAND), [], console)
    return console.export_text()


def test_the_table_says_what_fell_since_when_and_what_to_do() -> None:
    told = report([*rows("sums", FELL), *rows("chat", STAYED)])
    line = next(line for line in told.splitlines() if line.startswith("sums"))
    for part in ("0.800", "0.500", "-0.300 ±", "3200", "worse", "1970-02-13", "dddddddd", "aaaaaaaa"):
        assert part in line
    assert "what to do: Other tasks are as they were" in told and "drift: 1 task below last week: sums" in told


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120])
def test_a_narrow_terminal_shows_whole_columns_and_which_task_fell(width: int) -> None:
    told = report(rows("summaries/of-news", FELL), width).splitlines()
    assert told[0].split()[:3] == ["task", "last", "week"] and all(len(line) <= width for line in told[:2])
    assert told[1].split()[:4] == ["summaries/of-news", "0.800", "0.500", "worse"]


def test_a_file_gets_whole_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert output().width > 1000
    monkeypatch.setenv("COLUMNS", "70")
    assert output().width == 70


def test_a_report_without_drift_says_so() -> None:
    assert "no drift" in report(rows("chat", STAYED))
    assert "too few tokens to judge" in report(rows("chat", [0.8]))
    assert "no draft tokens in the last eight days" in report([])


def test_the_json_has_all_of_it() -> None:
    told = json.loads(json.dumps(as_dict(findings_of([*rows("sums", FELL), *rows("few", [0.8])], DEMAND), [])))
    assert told["drift"] is True and len(told["advice"]) == 1
    found, few = told["findings"]
    assert (found["task"], found["state"], found["cause"], found["since"]) == (
        "sums",
        "worse",
        "requests",
        "1970-02-13T08:00:00Z",
    )
    assert found["now"] == {
        "acceptance": 0.5,
        "draft_token_count": 3200,
        "accepted_token_count": 1600,
        "turn_count": 80,
    }
    assert (few["state"], few["standard_error"], few["difference"]) == ("too_few", None, None)


def test_a_comparison_without_tokens_has_no_difference_to_speak_of() -> None:
    assert Comparison(State.FEW, NOTHING, NOTHING).difference == 0
