"""Acceptance by hour in SQLite, PostgreSQL and memory alike: added to by many, and bounded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store.acceptance import KEPT_HOURS, MOST_ROWS, MOST_TASKS
from orchestrator.store.acceptance_rows import OTHER, AcceptanceKey, AcceptanceRow, TargetChange
from orchestrator.store.opening import MEMORY, open_store
from orchestrator.store.store import Store
from orchestrator.watching.acceptance import AcceptanceTally, TurnAcceptance
from slipstream.ratio_sums import RatioSums
from tests.postgresql import Server, running_server

COUNTS = RatioSums.of_turn(6, 10)
LARGE = RatioSums(2**41, 2**42, 2**60, 2**61, 2**62, 2**40)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "postgresql":
        address: str = request.getfixturevalue("server").new_database()
        return address
    return str(tmp_path / "sessions.db") if kind == "file" else MEMORY


@pytest.fixture(params=["file", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=["file", "postgresql", MEMORY])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(place_of(request.param, request, tmp_path))
    yield opened
    opened.close()


def key(task: str = "sums", draft: str = "d", temperature: int = 0) -> AcceptanceKey:
    return AcceptanceKey(task, "t", draft, temperature)


async def test_counts_of_an_hour_add_up_and_come_back_in_order(store: Store) -> None:
    await store.acceptance.add(8, {key("b"): COUNTS, key("a"): COUNTS})
    await store.acceptance.add(7, {key("b"): LARGE})
    await store.acceptance.add(8, {key("b"): COUNTS})
    expected = [
        AcceptanceRow(7, key("b"), LARGE),
        AcceptanceRow(8, key("a"), COUNTS),
        AcceptanceRow(8, key("b"), COUNTS.plus(COUNTS)),
    ]
    assert await store.acceptance.rows(0, 100) == expected
    assert await store.acceptance.rows(8, 8) == expected[1:]
    assert await store.acceptance.rows(9, 100) == []


async def test_several_processes_add_to_the_same_rows(place: str) -> None:
    stores = [open_store(place) for _ in range(3)]
    try:
        counts = {key(task): COUNTS for task in ("a", "b", "c")}
        for _ in range(4):
            await asyncio.gather(*(each.acceptance.add(1, counts) for each in stores))
        rows = await stores[0].acceptance.rows(1, 1)
        assert [row.counts.count for row in rows] == [12, 12, 12]
    finally:
        for each in stores:
            each.close()


async def test_an_hour_has_so_many_tasks_and_the_rest_is_other(store: Store) -> None:
    await store.acceptance.add(1, {key(f"{number:03}"): COUNTS for number in range(MOST_TASKS)})
    await store.acceptance.add(1, {key(f"late {number}"): COUNTS for number in range(9)})
    rows = {row.key.task: row.counts.count for row in await store.acceptance.rows(1, 1)}
    assert len(rows) == MOST_TASKS + 1 and rows[OTHER] == 9


async def test_a_flood_of_names_at_one_process_leaves_the_tasks_of_another(place: str) -> None:
    stores, tallies = [open_store(place) for _ in range(2)], [AcceptanceTally() for _ in range(2)]
    turns = {"mallory": [f"flood/{number}" for number in range(200)], "alice": ["summaries"] * 50}
    try:
        for hour in range(3):
            for each, tally, (caller, tasks) in zip(stores, tallies, turns.items(), strict=True):
                for task in tasks:
                    turn = TurnAcceptance(task, caller, "target", 0.0)
                    turn.add("draft", 10, 5)
                    tally.end_turn(turn)
                await each.acceptance.add(hour, tally.take())
            rows = {row.key.task: row.counts.count for row in await stores[0].acceptance.rows(hour, hour)}
            assert rows["summaries"] == 50
    finally:
        for each in stores:
            each.close()


async def test_an_hour_has_so_many_rows_and_loses_no_tokens(store: Store) -> None:
    await store.acceptance.add(1, {key(draft=f"{number:04}"): COUNTS for number in range(2 * MOST_ROWS)})
    rows = await store.acceptance.rows(1, 1)
    assert len(rows) == MOST_ROWS + 1 and sum(row.counts.count for row in rows) == 2 * MOST_ROWS


async def test_so_many_hours_are_kept_whatever_a_wrong_clock_says(store: Store) -> None:
    for hour in range(KEPT_HOURS):
        await store.acceptance.add(hour, {key(): COUNTS})
    await store.acceptance.add(10**6, {key(): COUNTS})
    await store.acceptance.add(10**6, {key(): COUNTS})
    assert [row.hour for row in await store.acceptance.rows(0, 10**7)] == [*range(1, KEPT_HOURS), 10**6]


async def test_a_change_of_the_target_is_noted_once(store: Store) -> None:
    history = store.acceptance
    assert await history.note_target(5.0, "big", "one") is None, "the first target is no change"
    assert await history.note_target(6.0, "big", "one") is None
    change = TargetChange(7.0, "big-2", "two", "one")
    assert await history.note_target(7.0, "big-2", "two") == change
    assert await history.note_target(8.0, "big-2", "two") is None
    assert await history.target_changes() == [change]
    back = await history.note_target(3.0, "big", "one")
    assert back is not None and back.before == "two" and back.since > 7, "a clock that is behind changes no order"
    assert await history.target_changes() == [change, back]


async def test_few_changes_of_the_target_are_remembered(store: Store) -> None:
    for number in range(100):
        await store.acceptance.note_target(float(number), "big", f"target {number}")
    changes = await store.acceptance.target_changes()
    assert len(changes) == 63 and changes[-1] == TargetChange(99.0, "big", "target 99", "target 98")


async def test_rows_outlive_the_process_and_an_older_store_gets_its_tables(tmp_path: Path) -> None:
    place = tmp_path / "sessions.db"
    open_store(str(place)).close()
    with sqlite3.connect(place) as connection:  # as a version left it that did not count
        connection.execute("DROP TABLE acceptance")
        connection.execute("DROP TABLE targets")
    connection.close()
    for turns in (1, 2):
        store = open_store(str(place))
        await store.acceptance.add(1, {key(): COUNTS})
        assert [row.counts.count for row in await store.acceptance.rows(1, 1)] == [turns]
        store.close()
