"""Sessions in an SQLite file: any number of processes of one machine share it."""

from __future__ import annotations

import logging
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from orchestrator.store.database import Connection, Value

log = logging.getLogger(__name__)

_BUSY_SECONDS = 5.0
"""Longest wait for other processes' transactions, which take milliseconds."""

_WIPE_SECONDS = 2.0
"""Seconds for which deleted text may stay in the write-ahead log. Later deletions are wiped with
it."""

_TEXTS = ("DELETE FROM sessions ", "DELETE FROM turns ")
"""The start of statements that delete what users wrote."""

_FOR_OTHERS = stat.S_IRWXO | stat.S_IWGRP
"""Permissions to remove from a store's file. Its group may read it, for backups."""


class SqliteConnection(Connection):
    """A connection to a file, or to a database of its own in memory."""

    begin_writing = "BEGIN IMMEDIATE"  # a transaction that first reads could fail when it writes

    def __init__(self, path: Path | None) -> None:
        """OSError or sqlite3.Error if the file cannot be had."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)  # other users must not read it
            _tighten(path)
        self._deletes = False
        self._log_wiper = None if path is None else _LogWiper(path)
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._write_ahead()
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA secure_delete = ON")  # deleted text is overwritten
        except BaseException:  # not a database, or locked by another process
            self._connection.close()
            raise

    def _write_ahead(self) -> None:
        """Use a write-ahead log. This one statement does not wait for other processes by itself."""
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

    @contextmanager
    def transaction(self, *, reads: bool) -> Iterator[None]:
        self._deletes = False
        with super().transaction(reads=reads):
            yield
        if self._deletes and self._log_wiper is not None:
            self._log_wiper.wipe_soon()

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        count = self._connection.execute(statement, values).rowcount
        self._deletes = self._deletes or (count > 0 and statement.startswith(_TEXTS))
        return count

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        if self._log_wiper is not None:
            self._log_wiper.close()
        self._connection.close()


class _LogWiper:
    """Empties a file's write-ahead log soon after deletions: it holds earlier versions of pages.
    Safe in any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def wipe_soon(self) -> None:
        """Wipe within `_WIPE_SECONDS`, or when other processes release the log."""
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(_WIPE_SECONDS, self._wipe)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Wipe at once if a wipe is pending."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._is_wiped()

    def _wipe(self) -> None:
        with self._lock:
            self._timer = None
        if not self._is_wiped():
            self.wipe_soon()

    def _is_wiped(self) -> bool:
        try:
            # It must not wait: a checkpoint that waits for a reader delays all writers.
            with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
                (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                return not is_busy
        except sqlite3.Error as error:  # as on a full disk
            log.warning("deleted text may still be in the log of %s: %s", self._path, error)
            return False


def _tighten(path: Path) -> None:
    """Remove permissions by which other users could read or change a store's files."""
    for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & _FOR_OTHERS:
                file.chmod(mode & ~_FOR_OTHERS)
                log.warning(
                    "other users could reach --store %s: its mode was %04o, now %04o", file, mode, mode & ~_FOR_OTHERS
                )
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning(
                "other users can reach --store %s, mode %04o, and that cannot be changed: %s",
                file,
                mode,
                error.strerror,
            )
