"""What a store does, in SQLite, PostgreSQL and memory alike."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SessionLimitError, SessionMovedError, StoreFormatError, StoreUnavailableError
from orchestrator.store import database as databases
from orchestrator.store import postgresql, sqlite, statements, tables
from orchestrator.store.database import DatabaseAtHand, Value
from orchestrator.store.opening import MEMORY, open_store
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import Counts, EndRow, OwnerRow, SessionRow, TurnRow
from orchestrator.store.sqlite import SqliteConnection
from orchestrator.store.store import Store
from tests.clock import Clock
from tests.postgresql import Server, running_server

COUNTS = Counts(5, 1, 7, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "postgresql":
        address: str = request.getfixturevalue("server").new_database()
        return address
    return str(tmp_path / "deep" / "sessions.db") if kind == "file" else MEMORY


@pytest.fixture(params=["file", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=["file", "postgresql", MEMORY])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(place_of(request.param, request, tmp_path))
    yield opened
    opened.close()


def owner(name: str, place: str = "") -> OwnerRow:
    return OwnerRow(name, f"at {name}", place or name)


def session(name: str, owner_id: str = "a", **fields: object) -> SessionRow:
    row = SessionRow(name, owner_id, 1, True, 0, 0, "", b"", 0, "", "{}")
    return dataclasses.replace(row, **fields)


def turn(number: int = 1, request_id: str = "") -> TurnRow:
    return TurnRow(number, request_id, b"\0print", 0, b"\1\0\0\0\2\0\0\0", "how")


async def test_a_session_is_what_was_written_of_it(store: Store) -> None:
    await store.register_owner(owner("a"))
    row = session("s", created=2**52, fingerprint=b"\0\xff", payload='{"é": "\\u0001"}', request_id="r")
    assert await store.create_sessions([row]) == [row]
    assert await store.find_session("s") == (row, owner("a"))
    assert await store.find_session("another") is None
    assert await store.sessions_of_request("", "r", listed=True) == [row]
    assert await store.sessions_of_request("", "r", listed=False) == []
    assert await store.epochs_of_owner("a") == {"s": 1}


async def test_a_request_gets_its_sessions_once(store: Store) -> None:
    first = [session("s1", request_id="r", listed=False), session("s2", request_id="r", listed=False, choice=1)]
    again = [dataclasses.replace(row, id=f"other {row.id}") for row in first]
    assert await store.create_sessions(first) == first
    assert await store.create_sessions(again) == first
    assert await store.create_sessions([session("s3", request_id="r")]) == [session("s3", request_id="r")], (
        "a session's is another"
    )
    await store.forget_request("", "r")
    assert await store.create_sessions(again) == again


async def test_two_that_ask_in_the_same_moment_get_the_same(place: str) -> None:
    stores = [open_store(place) for _ in range(4)]
    try:
        got = await asyncio.gather(
            *(each.create_sessions([session(f"s{index}", request_id="r")]) for index, each in enumerate(stores))
        )
        assert len({rows[0].id for rows in got}) == 1
    finally:
        for each in stores:
            each.close()


async def test_many_that_open_a_new_store_in_the_same_moment_all_can(place: str) -> None:
    opened = await asyncio.gather(*(asyncio.to_thread(open_store, place) for _ in range(6)))
    for store in opened:
        store.close()


async def test_the_choices_of_a_generation_begin_with_their_turns_or_not_at_all(store: Store) -> None:
    await store.register_owner(owner("a"))
    rows = [session(f"g{i}", listed=False, request_id="r", choice=i, running_turn=1) for i in range(2)]
    with pytest.raises(StoreUnavailableError):
        await store.create_sessions([rows[0], dataclasses.replace(rows[1], id="g0")], turns=[turn(), turn()])
    assert await store.sessions_of_request("", "r", listed=False) == []
    await store.create_sessions(rows, turns=[turn(1, "r"), turn(1, "r")])
    assert [(await store.list_turns(row.id))[0].begun for row in rows] == [turn(1, "r")] * 2


async def test_a_session_like_another_has_its_turns_or_is_not_there(store: Store) -> None:
    row = session("s")
    await store.create_sessions([row])
    for number in (1, 2):
        await store.begin_turn(row, turn(number, f"m{number}"), COUNTS)
        await store.end_turn(row, number, EndRow(b"", "x", forgotten=False), COUNTS)
    await store.create_sessions([session("fork")], like=(row, 1, 1))
    (copied,) = await store.list_turns("fork")
    assert copied.begun == turn(1) and copied.end is not None
    for source in (dataclasses.replace(row, epoch=2), dataclasses.replace(row, owner="b")):  # another's by now
        with pytest.raises(SessionMovedError):
            await store.create_sessions([session("late")], like=(source, 2, 2))
    await store.delete_session(row)
    with pytest.raises(SessionMovedError):  # deleted in this moment
        await store.create_sessions([session("late")], like=(row, 2, 2))
    assert await store.find_session("late") is None


async def test_a_turn_whose_writing_was_not_answered_can_be_begun_again(store: Store) -> None:
    row = session("s")
    await store.create_sessions([row])
    await store.begin_turn(row, turn(1, "first"), COUNTS)
    await store.begin_turn(row, turn(1, "again"), COUNTS)
    assert [stored.begun.request_id for stored in await store.list_turns("s")] == ["again"]


async def test_there_is_room_for_so_many(store: Store) -> None:
    for index in range(3):
        row = session(f"s{index}")
        await store.create_sessions([row], most=3)
        await store.begin_turn(row, turn(1), COUNTS)
    await store.create_sessions([session("g", listed=False)])
    with pytest.raises(SessionLimitError, match="3 sessions are stored, of at most 3"):
        await store.create_sessions([session("s3")], most=3)
    await store.delete_session(session("s1"))
    await store.create_sessions([session("s3")], most=3)


async def test_without_turns_the_oldest_session_of_the_principal_with_most_is_evicted(store: Store) -> None:
    used = session("used")
    await store.create_sessions([used])
    await store.begin_turn(used, turn(1), COUNTS)
    await store.create_sessions([session("patient", created=1)], most=4)
    for index in range(9):
        await store.create_sessions([session(f"flood{index}", created=index + 2, principal="p")], most=4)
    kept = [row.id for principal in ("", "p") for row in await store.list_sessions(principal, "t", 9, None)]
    assert kept == ["patient", "used", "flood8", "flood7"]
    assert await store.has_expired("p", "flood6") and not await store.has_expired("", "patient")
    assert not await store.has_expired("", "flood6")  # to others it was never there


async def test_as_many_sessions_as_needed_are_evicted_across_principals(store: Store) -> None:
    for index in range(6):
        await store.create_sessions([session(f"s{index}", created=index, principal="pq"[index % 2])])
    await store.create_sessions([session("new", created=9)], most=2)
    kept = [row.id for principal in ("", "p", "q") for row in await store.list_sessions(principal, "t", 9, None)]
    assert len(kept) == 2 and "new" in kept
    with pytest.raises(SessionLimitError):  # and none where they are not enough
        await store.create_sessions([session("another", created=10)], most=0)
    assert len([row for principal in ("", "p", "q") for row in await store.list_sessions(principal, "t", 9, None)]) == 2


async def test_a_principals_session_limit_does_not_depend_on_other_principals(store: Store) -> None:
    for index in range(3):
        await store.create_sessions([session(f"s{index}")])
        await store.create_sessions([session(f"p{index}", principal="p")], most_of_principal=3)
    with pytest.raises(SessionLimitError, match="you have 3 sessions, of at most 3: delete some"):
        await store.create_sessions([session("p3", principal="p")], most_of_principal=3)


async def test_to_each_principal_its_own_requests(store: Store) -> None:
    mine, yours = session("m", request_id="r"), session("y", request_id="r", principal="p")
    assert await store.create_sessions([mine]) == [mine]
    assert await store.create_sessions([yours]) == [yours]
    assert await store.sessions_of_request("p", "r", listed=True) == [yours]
    await store.forget_request("p", "r")
    assert await store.sessions_of_request("", "r", listed=True) == [mine]


async def test_pages_are_in_order_of_creation_and_of_one_target(store: Store) -> None:
    rows = [session(f"s{index:02}", created=index // 2, target="" if index % 3 else "t") for index in range(10)]
    for row in rows:
        await store.create_sessions([row])
    await store.create_sessions([session("elsewhere", target="u")])
    await store.create_sessions([session("g", listed=False)])
    first = await store.list_sessions("", "t", 4, None)
    rest = await store.list_sessions("", "t", 100, (first[-1].created, first[-1].id))
    assert [*first, *rest] == rows[::-1] and len(first) == 4


async def test_turns_are_read_as_they_were_written(store: Store) -> None:
    await store.register_owner(owner("a"))
    row = session("s")
    await store.create_sessions([row])
    await store.begin_turn(row, turn(1, "m1"), COUNTS)
    found = await store.find_session("s")
    assert found is not None and (found[0].running_turn, found[0].token_count, found[0].last_active) == (1, 7, 5)
    await store.end_turn(row, 1, EndRow(b"\3\0\0\0", "so", forgotten=False), COUNTS)
    await store.begin_turn(row, turn(2, "m2"), COUNTS)
    await store.end_turn(row, 2, EndRow(b"", "failed", forgotten=True), COUNTS)
    await store.begin_turn(row, turn(3), COUNTS)
    one, two, three = await store.list_turns("s")
    assert one.begun == turn(1, "m1") and one.end == EndRow(b"\3\0\0\0", "so", forgotten=False)
    assert two.begun == turn(2) and two.end is not None and two.end.tokens == b""
    assert three.begun == turn(3) and three.end is None


async def test_an_end_that_is_written_late_does_not_end_the_turn_after_it(store: Store) -> None:
    row = session("s")
    await store.create_sessions([row])
    await store.begin_turn(row, turn(1), COUNTS)
    await store.begin_turn(row, turn(2), COUNTS)
    await store.end_turn(row, 1, EndRow(b"", "x", forgotten=False), COUNTS)
    found = await store.find_session("s")
    assert found is not None and found[0].running_turn == 2


async def test_progress_is_joined_and_ends_at_a_gap(store: Store) -> None:
    row = session("s")
    await store.create_sessions([row])
    await store.begin_turn(row, turn(1), COUNTS)
    one, two, three = b"\1\0\0\0", b"\2\0\0\0", b"\3\0\0\0"
    assert await store.write_progress([(row, 1, 0, one + two)]) == []
    assert await store.write_progress([(row, 1, 2, three), (row, 1, 4, one)]) == []
    assert (await store.list_turns("s"))[0].tokens == one + two + three
    await store.write_progress([(row, 1, 1, three)])  # a round told again, after what was noted of the rest
    assert (await store.list_turns("s"))[0].tokens == one + three + three
    await store.end_turn(row, 1, EndRow(one, "x", forgotten=False), COUNTS)
    assert (await store.list_turns("s"))[0].tokens == b""


async def test_what_has_an_owner_that_lives_is_not_taken(store: Store) -> None:
    for name in ("a", "b"):
        await store.register_owner(owner(name))
    row = session("s")
    await store.create_sessions([row])
    await store.begin_turn(row, turn(1), COUNTS)
    assert await store.take_over_session(row, "b") == []
    assert await store.sessions_without_owner("", 9) == []
    assert await store.remove_owner("a", beat=7) is False
    assert await store.remove_owner("a", beat=0) is True
    assert [each.id for each in await store.sessions_without_owner("", 9)] == ["s"]
    assert await store.sessions_without_owner("t", 9) == []
    ((taken, turns),) = await store.take_over_session(row, "b")
    assert (taken.owner, taken.epoch, len(turns)) == ("b", 2, 1)
    assert await store.sessions_without_owner("", 9) == []
    assert await store.epochs_of_owner("a") == {}


async def test_late_writes_of_a_process_that_lost_ownership_fail(store: Store) -> None:
    await store.register_owner(owner("b"))
    late = session("s")  # of "a", which has no row
    await store.create_sessions([late])
    await store.begin_turn(late, turn(1), COUNTS)
    ((own, _),) = await store.take_over_session(late, "b")
    for write in (
        store.begin_turn(late, turn(2), COUNTS),
        store.end_turn(late, 1, EndRow(b"", "late", forgotten=False), COUNTS),
    ):
        with pytest.raises(SessionMovedError):
            await write
    assert await store.write_progress([(late, 1, 0, b"\1\0\0\0")]) == ["s"]
    with pytest.raises(SessionMovedError):
        await store.delete_session(late)
    assert [stored.begun.turn for stored in await store.list_turns("s")] == [1]
    assert (await store.list_turns("s"))[0].end is None and (await store.list_turns("s"))[0].tokens == b""
    await store.end_turn(own, 1, EndRow(b"", "mine", forgotten=False), COUNTS)
    await store.delete_session(own)
    assert await store.find_session("s") is None


async def test_late_writes_of_an_owner_that_took_its_session_again_fail(store: Store) -> None:
    """The owner has the same name, so only the epoch tells its writes from those of its life
    before."""
    await store.register_owner(owner("a"))
    late = session("s")
    await store.create_sessions([late])
    await store.begin_turn(late, turn(1), COUNTS)
    ((own, _),) = await store.take_over_session(late, "a")
    assert (own.owner, own.epoch) == ("a", 2)
    before = await store.find_session("s")
    for write in (
        store.begin_turn(late, turn(2), COUNTS),
        store.end_turn(late, 1, EndRow(b"", "late", forgotten=False), COUNTS),
        store.delete_session(late),
    ):
        with pytest.raises(SessionMovedError):
            await write
    assert await store.write_progress([(late, 1, 0, b"\1\0\0\0")]) == ["s"]
    assert await store.find_session("s") == before
    (stored,) = await store.list_turns("s")
    assert (stored.begun, stored.end, stored.tokens) == (turn(1), None, b"")
    assert await store.write_progress([(own, 1, 0, b"\1\0\0\0")]) == []


async def test_all_processes_of_a_store_find_one_secret_and_another_stores_is_another(place: str) -> None:
    stores = [open_store(place), open_store(place), open_store(MEMORY)]
    try:
        first, again, other = [await store.secret() for store in stores]
        assert first == again and len(first) == 32 and first != other
    finally:
        for store in stores:
            store.close()


async def test_an_owner_that_leaves_is_gone_at_once(store: Store) -> None:
    leaving, staying = (Ownership(store, owner(name), 8.0, Clock()) for name in "ab")
    await leaving.join()
    await leaving.beat()
    await staying.join()
    await leaving.leave()
    assert [each.id for each in await store.list_owners()] == ["b"]


def test_a_caller_whose_event_loop_has_ended_takes_the_store_from_no_other(tmp_path: Path) -> None:
    store, may_answer, asked = open_store(str(tmp_path / "s.db")), threading.Event(), threading.Event()

    def wait(_: object) -> None:
        asked.set()
        assert may_answer.wait(30)

    async def ask_and_leave() -> None:
        waiting = asyncio.ensure_future(store._database.run(wait))
        await asyncio.to_thread(asked.wait, 30)
        waiting.cancel()

    try:
        assert str(store) == str(tmp_path / "s.db")
        asyncio.run(ask_and_leave())
        may_answer.set()
        assert asyncio.run(store.list_owners()) == []
    finally:
        store.close()


async def test_what_is_refused_takes_nothing_along_that_is_done_in_the_same_transaction(place: str) -> None:
    store, may_go_on = open_store(place), threading.Event()
    row, moved = session("s"), session("moved")
    try:
        await store.create_sessions([row, moved])
        waiting = asyncio.ensure_future(store._database.run(lambda _: may_go_on.wait(30)))
        late = dataclasses.replace(moved, epoch=0)
        asked = [
            asyncio.ensure_future(store.begin_turn(each, turn(), COUNTS)) for each in (row, late, moved)
        ]  # they wait for the thread, which takes them together
        await asyncio.sleep(0)
        may_go_on.set()
        assert await waiting
        first, refused, last = await asyncio.gather(*asked, return_exceptions=True)
        assert (first, last) == (None, None) and isinstance(refused, SessionMovedError)
        assert [len(await store.list_turns(name)) for name in ("s", "moved")] == [1, 1]
    finally:
        may_go_on.set()
        store.close()


async def test_the_choices_of_a_generation_are_taken_together(store: Store) -> None:
    await store.register_owner(owner("b"))
    rows = [session(f"g{index}", listed=False, request_id="r", choice=index) for index in range(3)]
    await store.create_sessions(rows)
    assert [(row.id, row.epoch) for row, _ in await store.take_over_session(rows[1], "b")] == [
        ("g0", 2),
        ("g1", 2),
        ("g2", 2),
    ]
    again = {row.id: row.epoch for row, _ in await store.take_over_session(rows[1], "b")}
    assert again == {"g0": 2, "g1": 3, "g2": 2}, "what it has and did not ask for stays as it is"


async def test_a_process_in_the_same_slot_is_the_successor(store: Store) -> None:
    await store.register_owner(owner("a", "here"))
    await store.register_owner(owner("b", "there"))
    await store.register_owner(owner("c", "here"))
    assert {each.id for each in await store.list_owners()} == {"b", "c"}


async def test_unowned_sessions_expire_by_the_time_in_which_a_process_lived(store: Store) -> None:
    await store.register_owner(owner("a"))
    for row in (session("mine"), session("idle", "gone"), session("running", "gone")):
        await store.create_sessions([row])
    await store.begin_turn(session("running", "gone"), turn(1), COUNTS)
    assert await store.beat("a", 59.0) == (59.0, True)
    assert await store.expire_sessions(60) == []
    assert await store.beat("a", 10.0) == (59.0, True), "it never goes back"
    assert await store.beat("b", 61.0) == (61.0, False)
    assert await store.expire_sessions(60) == ["idle"]
    assert await store.expire_sessions(2) == ["running"], "no process that could run it has been there for long"
    assert await store.has_expired("", "idle") and not await store.has_expired("", "mine")
    await store.delete_session(session("mine"), expired=True)
    assert await store.has_expired("", "mine")
    with pytest.raises(SessionMovedError):
        await store.delete_session(session("never"), expired=True)
    assert not await store.has_expired("", "never")


async def test_so_many_expired_ones_are_remembered_the_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "_REMEMBERED_EXPIRED", 2)
    monkeypatch.setattr(statements, "_MOST_EXPIRED", 3)
    await store.register_owner(owner("a"))
    gone = [f"s{number}" for number in range(4)]
    for number, name in enumerate(gone):
        await store.create_sessions([session(name)])
        await store.beat("a", float(number))
        await store.delete_session(session(name), expired=True)
    assert [await store.has_expired("", name) for name in gone] == [False, False, True, True]


async def test_what_is_asked_all_the_time_looks_at_no_other_sessions() -> None:
    looked_at: list[str] = []

    class Explained(SqliteConnection):
        def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
            self.explain(statement, values)
            return super().rows(statement, values)

        def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
            if statement.split()[0] in ("UPDATE", "DELETE", "INSERT"):
                self.explain(statement, values)
            return super().execute(statement, values)

        def explain(self, statement: str, values: Sequence[Value]) -> None:
            plan = super().rows(f"EXPLAIN QUERY PLAN {statement}", values)
            looked_at.extend(f"{step[3]}: {statement}" for step in plan)

    def connect() -> Explained:
        explained = Explained(None)
        tables.prepare(explained, "BLOB")
        looked_at.clear()
        return explained

    database = DatabaseAtHand(connect, "explained")
    database.open()
    store = Store(database)
    row = session("s", request_id="r", listed=False)
    await store.create_sessions([row], turns=[turn()])
    await store.sessions_of_request("", "r", listed=False)
    await store.end_turn(row, 1, EndRow(b"", "{}", forgotten=False), COUNTS)
    await store.begin_turn(row, turn(2), COUNTS)
    await store.write_progress([(row, 2, 0, b"")])
    await store.list_turns("s")
    await store.find_session("s")
    await store.take_over_session(row, "b")
    await store.expire_sessions(1.0)
    await store.forget_request("", "r")
    store.close()
    assert looked_at and not [found for found in looked_at if found.startswith("SCAN sessions")]


async def test_an_owner_whose_beat_stands_still_for_a_lease_is_taken_out(place: str) -> None:
    clocks, stores = [Clock(), Clock()], [open_store(place), open_store(place)]
    first, second = (
        Ownership(store, owner(name), 8.0, clock) for store, name, clock in zip(stores, "ab", clocks, strict=True)
    )
    try:
        await first.join()
        await second.join()
        for _ in range(5):  # it lives
            clocks[1].now += 3
            await first.beat()
            assert await second.beat()
        clocks[1].now += 3
        assert await second.beat()
        clocks[1].now += 3
        assert await second.beat()
        assert {each.id for each in await stores[0].list_owners()} == {"a", "b"}, "six seconds"
        clocks[1].now += 3
        assert await second.beat()
        assert {each.id for each in await stores[0].list_owners()} == {"b"}, "nine"
        assert await first.beat() is False, "it learns of it"
        assert await first.beat() is True, "and joins again"
    finally:
        for store in stores:
            store.close()


async def test_an_owner_that_looks_twice_a_lease_sees_a_stopped_process(store: Store) -> None:
    clock = Clock()
    stopped, looking = Ownership(store, owner("a"), 8.0, Clock()), Ownership(store, owner("b"), 8.0, clock)
    await stopped.join()
    await looking.join()
    for _ in range(3):
        clock.now += 4  # half a lease, and no more
        await looking.beat()
    assert [each.id for each in await store.list_owners()] == ["b"]


async def test_who_was_away_does_not_take_others_for_dead(place: str) -> None:
    clock, stores = Clock(), [open_store(place), open_store(place)]
    try:
        first, second = Ownership(stores[0], owner("a"), 8.0, Clock()), Ownership(stores[1], owner("b"), 8.0, clock)
        await first.join()
        await second.join()
        clock.now += 100  # this one was stopped, and so may the other have been
        assert await second.beat()
        assert {each.id for each in await stores[0].list_owners()} == {"a", "b"}
        assert await second.marked("a") == dataclasses.replace(owner("a"), beat=1)
        assert [await second.marked(name) for name in ("b", "z", "")] == [None] * 3
    finally:
        for store in stores:
            store.close()


async def test_after_the_store_was_away_no_process_is_taken_for_dead(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, stores = Clock(), [open_store(place), open_store(place)]
    try:
        first, second = Ownership(stores[0], owner("a"), 8.0, Clock()), Ownership(stores[1], owner("b"), 8.0, clock)
        await first.join()
        await second.join()

        async def away(*_: object) -> tuple[float, bool]:
            raise StoreUnavailableError("it is away")

        with monkeypatch.context() as patched:
            patched.setattr(stores[1], "beat", away)
            for _ in range(4):
                clock.now += 3
                with pytest.raises(StoreUnavailableError):
                    await second.beat()
        clock.now += 3
        assert await second.beat()
        assert {each.id for each in await stores[0].list_owners()} == {"a", "b"}
        assert (await stores[1].beat("b", 0.0))[0] == 15.0, "the time that was away has been, too"
    finally:
        for store in stores:
            store.close()


async def test_what_cannot_be_done_takes_nothing_along(store: Store) -> None:
    await store.create_sessions([session("s")])
    results = await asyncio.gather(
        store.create_sessions([session("s")]),  # its id is taken
        store.create_sessions([session("t")]),
        store.find_session("s"),
        return_exceptions=True,
    )
    assert isinstance(results[0], StoreUnavailableError) and results[1] == [session("t")]
    assert results[2] == (session("s"), None)


async def test_a_full_disk_refuses_what_is_new_and_loses_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.db"))
    try:
        await store.create_sessions([session("s")])
        await store._database.run(lambda t: t.rows("PRAGMA max_page_count = 1"))  # no page more than there are
        with pytest.raises(StoreUnavailableError, match="full") as caught:
            await store.create_sessions([session("t", payload="x" * 100_000)])
        assert caught.value.metadata == {"outcome": "not_done"}
        assert await store.find_session("s") == (session("s"), None)
        await store._database.run(lambda t: t.rows("PRAGMA max_page_count = 100000"))
        await store.create_sessions([session("t", payload="x" * 100_000)])
    finally:
        store.close()


async def test_a_write_that_a_server_has_not_answered_may_still_happen_and_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_LONGEST_SECONDS", 0.5)
    store, row = open_store(server.new_database()), session("s")
    try:
        await store.create_sessions([row])
        with server.standing_still():
            with pytest.raises(StoreUnavailableError, match="with the same request_id again") as caught:
                await store.begin_turn(row, turn(1, "m"), COUNTS)
            assert caught.value.metadata == {"outcome": "unknown"}
            with pytest.raises(StoreUnavailableError) as caught:
                await store.list_turns("s")
            assert caught.value.metadata == {}, "a read has no outcome"
        monkeypatch.undo()
        assert [stored.begun.request_id for stored in await store.list_turns("s")] == ["m"], "it has happened"
        await store.begin_turn(row, turn(1, "m"), COUNTS)
        assert [stored.begun.request_id for stored in await store.list_turns("s")] == ["m"], "and happens once"
    finally:
        store.close()


async def test_a_server_that_was_away_is_found_again(server: Server) -> None:
    store = open_store(server.new_database())
    try:
        await store.create_sessions([session("s")])
        server.stop()
        with pytest.raises(StoreUnavailableError, match=r"cannot be read from postgresql://127\.0\.0\.1"):
            await store.find_session("s")
        server.start()
        assert await store.find_session("s") == (session("s"), None)
    finally:
        store.close()


def test_a_store_of_another_format_or_none_at_all_is_refused_in_one_line(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    open_store(str(place)).close()
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE about SET value = 99 WHERE name = 'format'")
    connection.close()
    with pytest.raises(StoreFormatError, match="its tables are of format 99, and this version reads 2"):
        open_store(str(place))
    (tmp_path / "text").write_text("this is not a database, however long it may be " * 100)
    for wrong in (tmp_path / "text", tmp_path, tmp_path / "text" / "s.db"):
        with pytest.raises(StoreFormatError, match="choose another --store"):
            open_store(str(wrong))
    with pytest.raises(StoreFormatError, match=r"in postgresql://127\.0\.0\.1:1/x: "):
        open_store("postgresql://me:secret@127.0.0.1:1/x")


def test_a_store_that_cannot_be_opened_leaves_no_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    place, text = tmp_path / "s.db", tmp_path / "text"
    open_store(str(place)).close()
    text.write_text("this is not a database, however long it may be " * 100)
    monkeypatch.setattr(tables, "_FORMAT", tables._FORMAT + 1)
    for wrong in (place, text):
        with pytest.raises(StoreFormatError):
            open_store(str(wrong))
    assert len(opened) == 3
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_an_address_of_another_kind_is_no_files_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreFormatError, match="must be a file's path, postgresql:") as refused:
        open_store("mysql://me:secret@127.0.0.1/x")
    assert "secret" not in str(refused.value)
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_another_process_does_not_let_go_of_is_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.05)
    place = tmp_path / "s.db"
    open_store(str(place)).close()
    holder = sqlite3.connect(place, isolation_level=None)
    try:
        holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreFormatError, match="locked"):
            open_store(str(place))
    finally:
        holder.close()


def test_a_server_whose_tables_are_of_another_format_keeps_no_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    place = server.new_database()
    open_store(place).close()
    opened: list[psycopg.Connection[Any]] = []
    connect = psycopg.connect

    def noted(*args: Any, **kwargs: Any) -> psycopg.Connection[Any]:
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(psycopg, "connect", noted)
    monkeypatch.setattr(tables, "_FORMAT", tables._FORMAT + 1)
    with pytest.raises(StoreFormatError):
        open_store(place)
    monkeypatch.setattr(postgresql, "_LIMITS", ("no_such_setting = 1",))
    with pytest.raises(StoreFormatError):
        open_store(place)
    assert [connection.closed for connection in opened] == [True, True]


async def test_deleted_text_waits_in_the_log_for_a_reader_and_holds_no_writer_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.sqlite._BUSY_SECONDS", 60.0)
    place = tmp_path / "s.db"
    store = open_store(str(place))
    reader = sqlite3.connect(place, isolation_level=None)
    try:
        row = session("s", payload="secret words")
        await store.create_sessions([row])
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sessions").fetchone()  # a backup, which holds a snapshot
        await store.delete_session(row)
        began = time.monotonic()
        while time.monotonic() - began < 3:  # while the log is to be wiped
            wrote = time.monotonic()
            await store.create_sessions([session(f"other {wrote}")])
            assert time.monotonic() - wrote < 30, "a writer waits for a reader"
            await asyncio.sleep(0.05)
        reader.execute("COMMIT")
        deadline = time.monotonic() + 60
        while b"secret words" in place.with_name("s.db-wal").read_bytes():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    finally:
        reader.close()
        store.close()


def test_what_is_kept_is_for_its_user_alone(tmp_path: Path) -> None:
    place = tmp_path / "own" / "s.db"
    open_store(str(place)).close()
    assert place.stat().st_mode & 0o077 == 0 and place.parent.stat().st_mode & 0o077 == 0
