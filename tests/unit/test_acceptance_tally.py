"""Counts of draft tokens by task: bounded for any callers, and kept until they are written."""

from __future__ import annotations

import pytest

from orchestrator.errors import StoreUnavailableError
from orchestrator.processes.metrics import acceptance_readings
from orchestrator.sessions.conversation.tasks import task_violations
from orchestrator.store.acceptance import MOST_ROWS
from orchestrator.store.acceptance_rows import OTHER, AcceptanceKey, AcceptanceRow, TargetChange
from orchestrator.watching.acceptance import AcceptanceTally, TurnAcceptance, temperature_class
from orchestrator.watching.acceptance_keeping import AcceptanceKeeping
from orchestrator.watching.task_names import IDLE_SECONDS, MOST_PLACES, TaskNames
from slipstream.ratio_sums import RatioSums
from slipstream.telemetry import instruments
from tests.clock import Clock

DRAFT = "0123456789abcdef" * 4


def turn(task: str = "sums", principal: str = "", draft: str = DRAFT, temperature: float = 0.0) -> TurnAcceptance:
    made = TurnAcceptance(task, principal, "t" * 64, temperature)
    made.add(draft, 6, 4)
    made.add(draft, 4, 2)
    return made


# --- tags


@pytest.mark.parametrize("task", ["", "summaries", "team_a/Sum.2:v1-x", "x" * 64])
def test_tags_that_are_right(task: str) -> None:
    assert task_violations(task) == []


@pytest.mark.parametrize("task", ["x" * 65, "two words", "é", "a\n", "{}", "x" * 10_000_000], ids=lambda task: task[:9])
def test_tags_that_are_wrong_are_named(task: str) -> None:
    (found,) = task_violations(task)
    assert found.field == "task" and len(found.description) < 200


# --- places


def names(clock: Clock) -> tuple[TaskNames, list[str]]:
    left: list[str] = []
    return TaskNames(left.append, clock), left


def test_a_flood_of_tasks_keeps_those_that_are_used() -> None:
    found, left = names(Clock())
    for number in range(MOST_PLACES):
        assert found.name(f"task {number}", "") == f"task {number}"
    for number in range(10_000):
        assert found.name(f"flood {number}", "") == OTHER
    assert found.name("task 0", "") == "task 0" and left == []


def test_a_task_that_was_idle_for_long_makes_room() -> None:
    clock = Clock()
    found, left = names(clock)
    for number in range(MOST_PLACES):
        found.name(f"task {number}", "")
    clock.now += IDLE_SECONDS - 1
    found.name("task 0", "")
    clock.now += 2
    assert found.name("new", "") == "new" and left == ["task 1"], "the one that was idle for longest"
    assert found.name("task 1", "") == "task 1" and left == ["task 1", "task 2"]


def test_one_principal_cannot_keep_all_places() -> None:
    found, left = names(Clock())
    for number in range(1000):
        found.name(f"flood {number}", "mallory")
    for number in range(MOST_PLACES):
        told = found.name(f"task {number}", "alice")
        assert (told == OTHER) == (number >= MOST_PLACES // 2), "half of the places, and no more"
    assert len(left) == MOST_PLACES // 2 and all(task.startswith("flood") for task in left)
    assert found.name("flood 0", "mallory") == OTHER


def test_a_caller_may_call_a_task_other() -> None:
    found, _ = names(Clock())
    assert found.name(OTHER, "") == OTHER
    for number in range(MOST_PLACES):
        assert found.name(f"task {number}", "") != OTHER


# --- counts


def test_a_turn_counts_once_with_the_squares_of_its_sums() -> None:
    tally = AcceptanceTally()
    tally.end_turn(turn())
    tally.end_turn(turn())
    key = AcceptanceKey("sums", "t" * 64, DRAFT, 0)
    assert tally.take() == {key: RatioSums(12, 20, 72, 120, 200, 2)}
    assert tally.take() == {} and tally.totals == {("sums", DRAFT): (20, 12)}


def test_a_turn_without_draft_tokens_takes_no_place() -> None:
    tally = AcceptanceTally()
    tally.end_turn(TurnAcceptance("sums", "", "t", 0.0))
    assert tally.take() == {} and tally.totals == {}


def test_temperatures_are_put_into_five_classes() -> None:
    assert [temperature_class(each) for each in (0.0, 0.01, 0.5, 0.8, 1.0, 1.3, 2.0, 100.0)] == [0, 1, 1, 2, 2, 3, 4, 4]


def test_a_million_tags_grow_neither_the_metrics_nor_what_waits_for_the_store() -> None:
    tally = AcceptanceTally()
    for number in range(20_000):
        tally.end_turn(turn(f"flood {number}", f"principal {number % 7}", f"{number:064}", number % 5 / 2))
    assert len(tally.totals) <= (MOST_PLACES + 1) * 17
    waiting = tally.take()
    assert len(waiting) <= MOST_ROWS + 5
    assert sum(counts.count for counts in waiting.values()) == 20_000
    tally.put_back(waiting)
    tally.end_turn(turn())
    assert sum(counts.count for counts in tally.take().values()) == 20_001


def test_metrics_show_the_first_digits_of_a_draft_and_the_whole_name_of_a_source() -> None:
    tally = AcceptanceTally()
    tally.end_turn(turn())
    tally.end_turn(turn(draft="prediction"))
    read = {each.instrument: each.values for each in acceptance_readings(tally)}
    assert read[instruments.TASK_DRAFT_TOKENS] == {("sums", "01234567"): 10, ("sums", "prediction"): 10}
    assert read[instruments.TASK_ACCEPTED_TOKENS] == {("sums", "01234567"): 6, ("sums", "prediction"): 6}
    assert instruments.TARGET_CHANGED not in read
    tally.target_changed = 7.0
    assert {each.instrument: each.values for each in acceptance_readings(tally)}[instruments.TARGET_CHANGED] == {
        (): 7.0
    }


# --- the store's side


class History:
    """A store that can be away."""

    def __init__(self) -> None:
        self.is_away = False
        self.written: list[tuple[int, dict[AcceptanceKey, RatioSums]]] = []
        self.asked: list[tuple[int, int]] = []

    async def add(self, hour: int, counts: dict[AcceptanceKey, RatioSums]) -> None:
        if self.is_away:
            raise StoreUnavailableError("away")
        self.written.append((hour, counts))

    async def rows(self, first: int, last: int) -> list[AcceptanceRow]:
        self.asked.append((first, last))
        return []

    async def note_target(self, now: float, name: str, target: str) -> TargetChange | None:
        raise StoreUnavailableError("away")


def keeping(tally: AcceptanceTally, history: History, now: float = 36_000_000.0) -> AcceptanceKeeping:
    return AcceptanceKeeping(tally, history, lambda: now)


async def test_what_cannot_be_written_is_written_later() -> None:
    tally, history = AcceptanceTally(), History()
    tally.end_turn(turn())
    kept = keeping(tally, history)
    history.is_away = True
    await kept.write()
    assert history.written == []
    history.is_away = False
    tally.end_turn(turn())
    await kept.write()
    await kept.write()
    ((hour, counts),) = history.written
    assert hour == 10_000 and [each.count for each in counts.values()] == [2]


async def test_a_store_that_is_away_does_not_stop_a_process_from_serving() -> None:
    tally = AcceptanceTally()
    await keeping(tally, History()).note_target("model", "t" * 64)
    assert tally.target_changed is None


async def test_history_is_read_a_day_at_a_time() -> None:
    history = History()
    async for _ in keeping(AcceptanceTally(), history).days(50):
        pass
    assert history.asked == [(9951, 9974), (9975, 9998), (9999, 10_000)]
