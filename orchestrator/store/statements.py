"""Statements that the store's operations share, each within a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from typing import Any

from orchestrator.errors import SessionMovedError
from orchestrator.store.database import Transaction
from orchestrator.store.rows import Counts, EndRow, SessionRow, StoredTurn, TurnRow

_REMEMBERED_EXPIRED, _MOST_EXPIRED = 10_000, 11_000

NOW = "(SELECT value FROM about WHERE name = 'seconds')"
SESSION_COLUMNS = ", ".join(f"sessions.{field.name}" for field in fields(SessionRow))
OF_REQUEST = "principal = ? AND request_id = ? AND request_id <> ''"
"""The condition of the index ``sessions_by_request``: without its last part a query scans all
sessions."""
_BEGUN = ("turn", "request_id", "fingerprint", "shared_count", "prompt", "payload")


def insert_session(t: Transaction, session: SessionRow) -> bool:
    """Insert a session; return False if its request has created its sessions already."""
    values = _values_of(session)
    marks = ", ".join("?" for _ in values)
    once = "ON CONFLICT (listed, principal, request_id, choice) WHERE request_id <> '' DO NOTHING"
    return t.execute(f"INSERT INTO sessions VALUES ({marks}, {NOW}) {once}", values) == 1


def delete_unused_sessions(t: Transaction, count: int) -> bool:
    """Delete sessions that never had a turn, the oldest of the principal that has most of them.

    To lose one costs its client a request; without room all clients would wait for an hour. Returns
    False if there are not as many.
    """
    unused = "listed = 1 AND turn_count = 0 AND running_turn IS NULL"
    most = f"SELECT principal FROM sessions WHERE {unused} GROUP BY principal ORDER BY count(*) DESC LIMIT 1"
    theirs = f"SELECT principal, id FROM sessions WHERE {unused} AND principal = ({most}) ORDER BY created, id LIMIT ?"
    while count:
        gone = expire_sessions(t, t.rows(theirs, (count,)))
        if not gone:
            return False
        count -= len(gone)
    return True


def expire_sessions(t: Transaction, found: Sequence[Sequence[str]]) -> list[str]:
    """Delete sessions, each given by principal and id, and remember that they existed."""
    for _, session_id in found:
        t.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    note_expired(t, found)
    return [session_id for _, session_id in found]


def insert_turn(t: Transaction, session_id: str, turn: TurnRow) -> None:
    """Insert a turn that is about to begin."""
    t.execute(
        f"INSERT INTO turns (session_id, {', '.join(_BEGUN)}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (session_id, *astuple(turn)),
    )


def still_owns(t: Transaction, session: SessionRow) -> bool:
    """Return whether an owner still owns its session. It is a write, so that no other process takes
    the session over before the transaction ends."""
    owns = "UPDATE sessions SET epoch = epoch WHERE id = ? AND owner = ? AND epoch = ?"
    return t.execute(owns, (session.id, session.owner, session.epoch)) == 1


def moved_error(session: SessionRow) -> SessionMovedError:
    """Return the error for a session that this process does not own."""
    what = f"session {session.id} was deleted, or another process owns it"
    return SessionMovedError(what, session_id=session.id)


def copy_turns(t: Transaction, session_id: str, source: SessionRow, last_turn: int, count: int) -> None:
    """Copy ``count`` ended turns of a session, up to one. SessionMovedError if they changed."""
    if not still_owns(t, source):
        raise moved_error(source)
    copied = t.execute(
        "INSERT INTO turns SELECT ?, turn, '', fingerprint, shared_count, prompt, payload, tokens, ended "
        "FROM turns WHERE session_id = ? AND turn <= ? AND ended IS NOT NULL",
        (session_id, source.id, last_turn),
    )
    if copied != count:
        raise moved_error(source)


def update_session(t: Transaction, session: SessionRow, counts: Counts, running_turn: str, turn: int) -> None:
    """Write a session's counts, target and running turn. SessionMovedError."""
    changed = t.execute(
        "UPDATE sessions SET last_active = ?, turn_count = ?, token_count = ?, message_count = ?, "
        f"running_turn = {running_turn}, target = ?, idle_since = {NOW} WHERE id = ? AND owner = ? AND epoch = ?",
        (*astuple(counts), turn, session.target, session.id, session.owner, session.epoch),
    )
    if not changed:
        raise moved_error(session)


def expired_name(principal: str, session_id: str) -> str:
    """Return the name of an expired session, which only its principal can find."""
    return f"{principal}\n{session_id}"


def note_expired(t: Transaction, sessions: Sequence[Sequence[str]]) -> None:
    """Remember expired sessions, each given by principal and id."""
    for principal, session_id in sessions:
        values = (expired_name(principal, session_id),)
        t.execute(f"INSERT INTO expired VALUES (?, {NOW}) ON CONFLICT DO NOTHING", values)
    (count,) = t.rows("SELECT count(*) FROM expired")[0] if sessions else (0,)
    if count > _MOST_EXPIRED:  # sorting them takes milliseconds
        t.execute(
            "DELETE FROM expired WHERE id NOT IN (SELECT id FROM expired ORDER BY since DESC LIMIT ?)",
            (_REMEMBERED_EXPIRED,),
        )


def sessions_of_request(t: Transaction, principal: str, request_id: str, *, listed: bool) -> list[SessionRow]:
    """Return the sessions that a principal's request has created."""
    statement = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE listed = ? AND {OF_REQUEST} ORDER BY choice"
    return [session_of(row) for row in t.rows(statement, (int(listed), principal, request_id))]


def turns_of(t: Transaction, session_id: str, only: int | None = None) -> list[StoredTurn]:
    """Return a session's turns, in order, or ``only`` one of them."""
    where = "session_id = ?" if only is None else "session_id = ? AND turn = ?"
    values: tuple[Any, ...] = (session_id,) if only is None else (session_id, only)
    noted: dict[int, list[tuple[int, bytes]]] = {}
    statement = f"SELECT turn, position, tokens FROM progress WHERE {where} ORDER BY turn, position"
    for turn, position, tokens in t.rows(statement, values):
        noted.setdefault(turn, []).append((position, bytes(tokens)))
    statement = f"SELECT {', '.join(_BEGUN)}, tokens, ended FROM turns WHERE {where} ORDER BY turn"
    turns = []
    for turn, request_id, fingerprint, shared_count, prompt, payload, tokens, ended in t.rows(statement, values):
        row = TurnRow(turn, request_id, bytes(fingerprint), shared_count, bytes(prompt), payload)
        end = None if ended is None else EndRow(bytes(tokens), ended, forgotten=not request_id)
        turns.append(StoredTurn(row, end, _joined(noted.get(turn, ()))))
    return turns


def _joined(pieces: Sequence[tuple[int, bytes]]) -> bytes:
    """Join pieces of tokens, as far as each begins where those before it end."""
    whole = b""
    for position, tokens in pieces:
        if position * 4 <= len(whole):
            whole = whole[: position * 4] + tokens
    return whole


def _values_of(session: SessionRow) -> tuple[Any, ...]:
    return astuple(replace(session, listed=int(session.listed)))  # type: ignore[arg-type]


def session_of(row: Sequence[Any]) -> SessionRow:
    """Return a session from the columns of its row."""
    session = SessionRow(*row)
    return replace(session, listed=bool(session.listed), fingerprint=bytes(session.fingerprint))
