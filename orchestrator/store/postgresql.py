"""Sessions in a PostgreSQL server: any number of machines share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from slipstream.extras import require

require("orchestrator", "postgresql")

import psycopg
from psycopg.conninfo import conninfo_to_dict

from orchestrator.errors import StoreFormatError
from orchestrator.store.database import Connection, Value

_CONNECT_SECONDS = 5
_SILENT_SECONDS = 10
"""Seconds of silence after which a connection is closed."""

_PREPARING = 0x511B57BEA3
"""Number of the lock that a process holds while it makes the tables."""

_UNREADABLE = (
    "--store has to be postgresql://USER:PASSWORD@HOST:PORT/NAME; in user and password write %2F for /, %25 for %, %23 for #, "
    "%40 for @, %3A for :, %3F for ?, %20 for a space; an IPv6 address stands in brackets, as in [::1]"
)

_LIMITS = ("idle_in_transaction_session_timeout = '5s'", "lock_timeout = '10s'", "statement_timeout = '30s'")
"""Limits for a process that stops in the middle of a transaction: others wait no longer."""


class PostgresqlConnection(Connection):
    """A connection to a PostgreSQL server."""

    def __init__(self, address: str) -> None:
        """psycopg.Error if it cannot be reached."""
        self._connection = psycopg.connect(
            address,
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
            keepalives_idle=_SILENT_SECONDS,
            tcp_user_timeout=_SILENT_SECONDS * 1000,
            application_name="slipstream",
        )
        try:
            for limit in _LIMITS:
                self._connection.execute(_own(f"SET {limit}"))
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_usable(self) -> bool:
        return not self._connection.closed

    @contextmanager
    def preparing(self) -> Iterator[None]:
        with self.transaction(reads=False):
            self.rows(f"SELECT pg_advisory_xact_lock({_PREPARING})")  # IF NOT EXISTS alone lets two make one table
            yield

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        return self._connection.execute(_own(statement), values).rowcount

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(_own(statement), values).fetchall()

    def close(self) -> None:
        self._connection.close()


def shown(address: str) -> str:
    """Return an address as people may see it: host, port and database. StoreFormatError if it
    cannot be read.

    The error quotes nothing: what cannot be read may be the password.
    """
    try:
        parts = conninfo_to_dict(address)
    except psycopg.Error as error:
        raise StoreFormatError(_UNREADABLE) from error
    host, port, name = (str(parts.get(key) or "") for key in ("host", "port", "dbname"))
    # A slash in a password ends what libpq takes for host and port.
    if "@" in host + name or not all(one.isdecimal() for one in port.split(",") if one):
        raise StoreFormatError(_UNREADABLE)
    return f"postgresql://{host}{':' if port else ''}{port}/{name}"


def _own(statement: str) -> Any:
    """Return a statement with psycopg's ``%s`` for values. Our statements have no other ``?`` or
    ``%s``."""
    return cast(Any, statement.replace("?", "%s"))
