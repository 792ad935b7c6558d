"""Work on a database that another process has locked."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence

from orchestrator.errors import StoreUnavailableError
from orchestrator.store.database import DatabaseOnThread, Transaction, Value
from orchestrator.store.sqlite import SqliteConnection


class LockedConnection(SqliteConnection):
    """A database in memory in which no transaction that writes can begin."""

    def __init__(self) -> None:
        super().__init__(None)
        self.tries = 0

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Refuse to begin writing, and count how often that is tried."""
        if statement == self.begin_writing:
            self.tries += 1
            raise sqlite3.OperationalError("database is locked")
        return super().execute(statement, values)


async def test_writes_that_wait_for_one_lock_fail_together_and_reads_beside_them_are_answered() -> None:
    connection = LockedConnection()
    database = DatabaseOnThread(lambda: connection, "the store")
    database.open()
    is_busy, may_go_on = threading.Event(), threading.Event()

    def block(transaction: Transaction) -> None:
        is_busy.set()
        may_go_on.wait(20)

    blocking = asyncio.create_task(database.run(block, reads=True))
    await asyncio.to_thread(is_busy.wait, 20)
    writes = [asyncio.create_task(database.run(lambda t: t.execute("SELECT 1"))) for _ in range(5)]
    reads = [asyncio.create_task(database.run(lambda t: t.rows("SELECT 2"), reads=True)) for _ in range(2)]
    await asyncio.sleep(0)  # all of them are queued
    may_go_on.set()
    await blocking
    assert await asyncio.gather(*reads) == [[(2,)], [(2,)]]
    for refused in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(refused, StoreUnavailableError) and refused.metadata["outcome"] == "not_done"
    assert connection.tries == 1, "each write would wait as long again for the same lock"
    database.close()
