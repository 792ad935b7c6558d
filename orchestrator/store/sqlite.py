"""Sessions in a file of SQLite's: one machine, any number of processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.store.database import Connection, Value

_BUSY_SECONDS = 5.0
"""For other processes' transactions, which take milliseconds."""


class SqliteConnection(Connection):
    """A connection to a file, or to a database of its own in memory."""

    begin_writing = "BEGIN IMMEDIATE"  # who only wants to write later may find that another one does

    def __init__(self, path: Path | None) -> None:
        """OSError or sqlite3.Error if the file cannot be had."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)  # what people say is nobody else's
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._write_ahead()
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        except BaseException:  # not a database, or locked by another process
            self._connection.close()
            raise

    def _write_ahead(self) -> None:
        """The one statement that does not wait for others who do the same in this moment."""
        give_up = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.02)

    @property
    def is_usable(self) -> bool:
        return True  # a full disk may have room again

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        return self._connection.execute(statement, values).rowcount

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        self._connection.close()
