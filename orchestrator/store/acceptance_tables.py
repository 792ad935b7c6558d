"""The tables of acceptance by hour and of the targets that were served."""

from __future__ import annotations

from typing import Final

KEYS: Final = "hour, task, target, draft, temperature"
COUNTS: Final = ("turns", "drafted", "accepted", "drafted_squared", "drafted_accepted", "accepted_squared")

ACCEPTANCE_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS acceptance (hour BIGINT NOT NULL, task TEXT NOT NULL, target TEXT NOT NULL, "
    "draft TEXT NOT NULL, temperature INTEGER NOT NULL, "
    f"{', '.join(f'{name} BIGINT NOT NULL' for name in COUNTS)}, PRIMARY KEY ({KEYS}))",
    "CREATE TABLE IF NOT EXISTS targets (since DOUBLE PRECISION PRIMARY KEY, name TEXT NOT NULL, target TEXT NOT NULL)",
)
