"""From what a user says to a store that works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import StoreFormatError
from orchestrator.store.database import Connection, Database, DatabaseAtHand, DatabaseOnThread
from orchestrator.store.sqlite import SqliteConnection
from orchestrator.store.store import Store, prepare
from slipstream.errors import SlipstreamError

MEMORY = "memory"
"""Sessions end with the process."""

_POSTGRESQL = ("postgresql://", "postgres://")


def open_store(place: str) -> Store:
    """A store at a file's path, a postgresql:// address, or in `MEMORY`. StoreFormatError with what
    would be right."""
    if place.startswith(_POSTGRESQL):
        from orchestrator.store.postgresql import PostgresqlConnection, shown  # an extra: only who asks for it has it

        return _opened(DatabaseOnThread, lambda: PostgresqlConnection(place), "BYTEA", shown(place))
    if place == MEMORY:
        return _opened(DatabaseAtHand, lambda: SqliteConnection(None), "BLOB", place)
    if "://" in place:  # what it holds is not shown: it may be a password
        raise StoreFormatError("--store has to be a file's path, postgresql://USER@HOST/NAME, or memory")
    path = Path(place).expanduser()
    return _opened(DatabaseOnThread, lambda: SqliteConnection(path), "BLOB", place)


def _opened(
    kind: Callable[[Callable[[], Connection], str], Database],
    connect: Callable[[], Connection],
    bytes_type: str,
    name: str,
) -> Store:
    def connect_and_prepare() -> Connection:
        connection = connect()
        try:
            with connection.preparing():
                prepare(connection, bytes_type)
        except BaseException:
            connection.close()
            raise
        return connection

    database = kind(connect_and_prepare, name)
    try:
        database.open()
    except SlipstreamError as error:
        raise StoreFormatError(f"sessions cannot be kept in {name}: {error}") from error
    except Exception as error:
        why = " ".join(str(error).split())
        raise StoreFormatError(
            f"sessions cannot be kept in {name}: {why}; choose another --store, or memory to keep none"
        ) from error
    return Store(database)
