"""A store finds out whether it can write sessions by writing, in each kind of database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import StoreUnavailableError
from orchestrator.store import writing as writing_module
from orchestrator.store.database import Transaction
from orchestrator.store.opening import MEMORY, open_store
from orchestrator.store.rows import OwnerRow
from orchestrator.store.store import Store
from orchestrator.store.writing import Writing
from tests.postgresql import Server, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture(params=["file", "postgresql", MEMORY])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = str(tmp_path / "sessions.db") if request.param == "file" else MEMORY
    if request.param == "postgresql":
        place = request.getfixturevalue("server").new_database()
    opened = open_store(place)
    yield opened
    opened.close()


async def test_a_trial_leaves_nothing(store: Store) -> None:
    me = OwnerRow("me", "here", "place")
    await store.register_owner(me)
    for _ in range(3):
        await store.try_writing()
    assert await store.list_owners() == [me]


def fail_writes(store: Store, monkeypatch: pytest.MonkeyPatch, failing: list[bool]) -> None:
    run = store._database.run

    async def failing_run(work: object, *, reads: bool = False) -> object:
        def fail(t: Transaction) -> None:
            t.execute("INSERT INTO no_such_table VALUES (1)")

        return await run(fail if failing and not reads else work, reads=reads)

    monkeypatch.setattr(store._database, "run", failing_run)


async def test_a_store_is_not_writable_from_a_failed_trial_to_one_that_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "_RETRY_SECONDS", 0.01)
    store = open_store(str(tmp_path / "sessions.db"))
    failing: list[bool] = []
    fail_writes(store, monkeypatch, failing)
    writing, changes = Writing(store), asyncio.Queue[bool]()
    watching = asyncio.create_task(writing.watch(lambda: changes.put_nowait(writing.is_possible)))
    try:
        failing.append(True)
        with pytest.raises(StoreUnavailableError):
            await store.register_owner(OwnerRow("me", "here", "place"))
        assert await changes.get() is False
        failing.clear()
        assert await changes.get() is True
        await store.register_owner(OwnerRow("me", "here", "place"))
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        store.close()
    assert changes.empty()


async def test_a_write_that_fails_during_a_trial_asks_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "sessions.db"))
    trials, may_end = asyncio.Queue[None](), asyncio.Event()
    writing = Writing(store)

    async def tries() -> None:
        trials.put_nowait(None)
        await may_end.wait()

    async def fail() -> None:
        with pytest.raises(StoreUnavailableError):
            await store._database.run(lambda t: t.execute("INSERT INTO no_such_table VALUES (1)"))

    monkeypatch.setattr(store, "try_writing", tries)
    watching = asyncio.create_task(writing.watch(lambda: pytest.fail("it has not changed")))
    try:
        async with asyncio.timeout(60):
            await fail()
            await trials.get()
            await fail()  # the trial has written before
            may_end.set()
            await trials.get()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        store.close()


async def test_one_failure_that_a_trial_does_not_share_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "sessions.db"))
    tried = asyncio.Event()
    writing = Writing(store)

    async def tries() -> None:
        tried.set()

    monkeypatch.setattr(store, "try_writing", tries)
    watching = asyncio.create_task(writing.watch(lambda: pytest.fail("it has not changed")))
    try:
        with pytest.raises(StoreUnavailableError):
            await store._database.run(lambda t: t.execute("INSERT INTO no_such_table VALUES (1)"))
        await tried.wait()
        assert writing.is_possible
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        store.close()
