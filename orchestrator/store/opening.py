"""Opens the store that the operator names."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.errors import StoreFormatError
from orchestrator.store.database import Connection, Database, DatabaseAtHand, DatabaseOnThread
from orchestrator.store.sqlite import SqliteConnection
from orchestrator.store.store import Store
from orchestrator.store.tables import prepare
from slipstream.errors import SlipstreamError
from slipstream.home import expanded

MEMORY = "memory"
"""The name of a store in memory: its sessions end with the process."""

_POSTGRESQL = ("postgresql://", "postgres://")


def open_store(place: str) -> Store:
    """Open a store at a file's path, at a postgresql:// address, or in `MEMORY`.

    StoreFormatError says what would be right.
    """
    if place.startswith(_POSTGRESQL):
        from orchestrator.store.postgresql import PostgresqlConnection, shown  # an extra, needed only here

        return _opened(DatabaseOnThread, lambda: PostgresqlConnection(place), "BYTEA", shown(place))
    if place == MEMORY:
        return _opened(DatabaseAtHand, lambda: SqliteConnection(None), "BLOB", place)
    if "://" in place:  # not shown: it may hold a password
        raise StoreFormatError("--store must be a file's path, postgresql://USER@HOST/NAME, or memory")
    path = expanded(place)
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
        raise StoreFormatError(f"sessions cannot be stored in {name}: {error}") from error
    except Exception as error:
        why = " ".join(str(error).split())
        raise StoreFormatError(
            f"sessions cannot be stored in {name}: {why}; choose another --store, or memory to store none"
        ) from error
    return Store(database)
