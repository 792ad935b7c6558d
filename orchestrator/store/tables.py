"""The tables of the store, and its secret."""

from __future__ import annotations

import secrets
from typing import Final

from orchestrator.errors import StoreFormatError
from orchestrator.store.acceptance_tables import ACCEPTANCE_TABLES
from orchestrator.store.database import Transaction

_FORMAT = 2
"""Format of the tables. A store with another format is refused."""

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, address TEXT NOT NULL, place TEXT NOT NULL, beat BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, owner TEXT NOT NULL, epoch BIGINT NOT NULL, "
    "listed INTEGER NOT NULL, created BIGINT NOT NULL, last_active BIGINT NOT NULL, "
    "request_id TEXT NOT NULL, fingerprint {bytes} NOT NULL, "
    "choice INTEGER NOT NULL, target TEXT NOT NULL, payload TEXT NOT NULL, turn_count INTEGER NOT NULL, "
    "token_count INTEGER NOT NULL, message_count INTEGER NOT NULL, running_turn INTEGER, principal TEXT NOT NULL, "
    "idle_since DOUBLE PRECISION NOT NULL)",
    "CREATE UNIQUE INDEX IF NOT EXISTS sessions_by_request ON sessions (listed, principal, request_id, choice) "
    "WHERE request_id <> ''",
    "CREATE INDEX IF NOT EXISTS sessions_by_creation ON sessions (principal, created, id) WHERE listed = 1",
    "CREATE INDEX IF NOT EXISTS sessions_idle ON sessions (idle_since)",
    "CREATE INDEX IF NOT EXISTS sessions_running ON sessions (owner) WHERE running_turn IS NOT NULL",
    "CREATE TABLE IF NOT EXISTS turns (session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, turn INTEGER NOT NULL, "
    "request_id TEXT NOT NULL, fingerprint {bytes} NOT NULL, shared_count INTEGER NOT NULL, prompt {bytes} NOT NULL, "
    "payload TEXT NOT NULL, tokens {bytes}, ended TEXT, PRIMARY KEY (session_id, turn))",
    "CREATE TABLE IF NOT EXISTS progress (session_id TEXT NOT NULL, turn INTEGER NOT NULL, position INTEGER NOT NULL, "
    "tokens {bytes} NOT NULL, PRIMARY KEY (session_id, turn, position), "
    "FOREIGN KEY (session_id, turn) REFERENCES turns ON DELETE CASCADE)",
    "CREATE TABLE IF NOT EXISTS expired (id TEXT PRIMARY KEY, since DOUBLE PRECISION NOT NULL)",
)


def prepare(transaction: Transaction, bytes_type: str) -> None:
    """Make the tables if they are missing, in one process at a time.

    StoreFormatError if another version made them.
    """
    transaction.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value DOUBLE PRECISION NOT NULL)")
    found = transaction.row("SELECT value FROM about WHERE name = 'format'")
    if found is not None and found[0] != _FORMAT:
        raise StoreFormatError(
            f"its tables are of format {found[0]:g}, and this version reads {_FORMAT}: take another store, or the version of "
            "Slipstream that made it"
        )
    if found is None:
        for table in _TABLES:
            transaction.execute(table.format(bytes=bytes_type))
        for name, value in (("format", _FORMAT), ("seconds", 0)):
            transaction.execute("INSERT INTO about VALUES (?, ?) ON CONFLICT DO NOTHING", (name, value))
    # Not part of the format: a version that does not know these tables leaves them alone.
    for table in ACCEPTANCE_TABLES:
        transaction.execute(table)
    transaction.execute("CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    made = ("processes", secrets.token_hex(32))
    transaction.execute("INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING", made)
