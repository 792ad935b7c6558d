"""What a store's errors and files give away."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.errors import StoreFormatError
from orchestrator.store.opening import open_store
from orchestrator.store.rows import Counts, OwnerRow, SessionRow, TurnRow

SECRET = "hunter2"
PLACES = [
    f"postgresql://u:{SECRET}/{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}%zz@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}#{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET} {SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}?{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}@{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}:{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}@[::1/db",
    f"postgresql://u:{SECRET}@[::/db",
    f"postgresql://u:{SECRET}@127.0.0.1:port/db",
    f"postgresql://u@127.0.0.1:1/db?password={SECRET}",
    f"postgresql://u@127.0.0.1:1/db?password={SECRET}&wrong=1",
    f"postgresql://u@127.0.0.1:1/db?sslpassword={SECRET}&sslmode=wrong",
    f"postgres://u:{SECRET}@127.0.0.1:1/db",
    f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/db",
    f"POSTGRESQL://u:{SECRET}@127.0.0.1:1/db",
    f"mysql://u:{SECRET}@127.0.0.1:1/db",
]


@pytest.mark.parametrize("place", PLACES)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreFormatError) as caught:
        open_store(place)
    assert SECRET not in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert SECRET not in caplog.text
    assert not list(tmp_path.iterdir()), "nothing is made of an address that is taken for a path"


@pytest.mark.parametrize(
    ("before", "after"), [(0o666, 0o640), (0o644, 0o640), (0o660, 0o640), (0o640, 0o640), (0o600, 0o600)]
)
def test_a_store_that_other_users_can_reach_is_closed_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int, after: int
) -> None:
    path = tmp_path / "sessions.db"
    open_store(str(path)).close()
    path.chmod(before)
    caplog.set_level(logging.WARNING)
    store = open_store(str(path))
    try:
        assert path.stat().st_mode & 0o777 == after
        assert all(file.stat().st_mode & 0o777 & ~after == 0 for file in tmp_path.iterdir())
        told = [line for line in caplog.messages if "other users could reach --store" in line]
        assert len(told) == (before != after)
    finally:
        store.close()


async def test_the_text_of_a_deleted_session_is_in_none_of_the_stores_files(tmp_path: Path) -> None:
    def found() -> set[str]:
        names = set()
        for file in tmp_path.iterdir():
            with suppress(FileNotFoundError):  # the last connection to close takes the log away
                names |= {file.name} if text in file.read_bytes() else set()
        return names

    text = b"what-was-said-and-is-nobodys-business"
    store = open_store(str(tmp_path / "sessions.db"))
    try:
        await store.register_owner(OwnerRow("a", "at a", "a"))
        for number in range(40):
            row = SessionRow(f"s{number}", "a", 1, True, 0, 0, "", b"", 0, "", text.decode() * 50)
            await store.create_sessions([row])
            await store.begin_turn(row, TurnRow(1, "", b"", 0, b"\1\0\0\0", text.decode() * 100), Counts(1, 1, 1, 1))
        assert found()
        for number in range(40):
            row = SessionRow(f"s{number}", "a", 1, True, 0, 0, "", b"", 0, "", text.decode() * 50)
            await store.delete_session(row)
        async with asyncio.timeout(60):
            while found():  # noqa: ASYNC110  # files tell no event loop
                await asyncio.sleep(0.1)
    finally:
        store.close()
    assert not found()
