"""The store's operations, in SQL that SQLite and PostgreSQL both understand.

A session has one owner, and every write states the owner's epoch: a process that has lost ownership
can no longer write. An owner is a row whose beat grows. A process that sees a beat stand still for
a lease removes the owner, and then any process may take over its sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields, replace
from typing import Any, Final

from orchestrator.errors import SessionLimitError, SessionMovedError, StoreFormatError
from orchestrator.store.database import Database, Transaction
from orchestrator.store.rows import Counts, EndRow, OwnerRow, SessionRow, StoredTurn, TurnRow

_FORMAT = 2
"""Format of the tables. A store with another format is refused."""

_TRIAL_BYTES = 2**18
"""Size of a turn with a prompt of some ten thousand tokens and its session's text."""

_REMEMBERED_EXPIRED, _MOST_EXPIRED = 10_000, 11_000
_TIMES_FOR_RUNNING = 24
"""Factor of the expiry time for a session whose turn waits for weights that no process serves."""

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

_NOW = "(SELECT value FROM about WHERE name = 'seconds')"
_SESSION = ", ".join(f"sessions.{field.name}" for field in fields(SessionRow))
_OF_REQUEST = "principal = ? AND request_id = ? AND request_id <> ''"
"""The condition of the index ``sessions_by_request``: without its last part a query scans all
sessions."""
_BEGUN = ("turn", "request_id", "fingerprint", "shared_count", "prompt", "payload")


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
    # Not part of the format: a version that does not know this table leaves it alone.
    transaction.execute("CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    made = ("processes", secrets.token_hex(32))
    transaction.execute("INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING", made)


class Store:
    """Sessions, their turns and their owners, in a database.

    Any method raises StoreUnavailableError if the database cannot be reached.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __str__(self) -> str:
        return str(self._database)

    def close(self) -> None:
        """Finish the work that is queued, and close the database."""
        self._database.close()

    def on_trouble(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the event loop for each read or write that fails."""
        self._database.on_trouble = callback

    async def try_writing(self) -> None:
        """Write as much as a turn may need, and delete it. StoreUnavailableError if there is no
        room."""
        row = OwnerRow(f"trial {secrets.token_hex(8)}", secrets.token_hex(_TRIAL_BYTES // 2), "")

        def work(t: Transaction) -> None:
            t.execute("INSERT INTO owners VALUES (?, ?, ?, ?)", astuple(row))
            t.execute("DELETE FROM owners WHERE id = ?", (row.id,))

        await self._database.run(work)

    # Owners.

    async def register_owner(self, owner: OwnerRow) -> None:
        """Add an owner, and remove the previous one in its place, which has ended."""

        def work(t: Transaction) -> None:
            t.execute("DELETE FROM owners WHERE place = ? AND id <> ?", (owner.place, owner.id))
            t.execute("INSERT INTO owners VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", astuple(owner))

        await self._database.run(work)

    async def beat(self, owner_id: str, seconds: float) -> tuple[float, bool]:
        """Grow an owner's beat, and the store's time to ``seconds``.

        Returns the store's time, which counts the seconds in which any owner lived, and whether the
        owner still had its row.
        """

        def work(t: Transaction) -> tuple[float, bool]:
            alive = t.execute("UPDATE owners SET beat = beat + 1 WHERE id = ?", (owner_id,)) == 1
            t.execute("UPDATE about SET value = ? WHERE name = 'seconds' AND value < ?", (seconds, seconds))
            (now,) = t.rows("SELECT value FROM about WHERE name = 'seconds'")[0]
            return float(now), alive

        return await self._database.run(work)

    async def list_owners(self) -> list[OwnerRow]:
        """Return all owners that were not removed."""
        rows = await self._database.run(lambda t: t.rows("SELECT id, address, place, beat FROM owners"), reads=True)
        return [OwnerRow(*row) for row in rows]

    async def remove_owner(self, owner_id: str, beat: int | None = None) -> bool:
        """Remove an owner, unless its beat has passed ``beat``. Returns whether it was removed."""

        def work(t: Transaction) -> bool:
            if beat is None:
                return t.execute("DELETE FROM owners WHERE id = ?", (owner_id,)) == 1
            return t.execute("DELETE FROM owners WHERE id = ? AND beat = ?", (owner_id, beat)) == 1

        return await self._database.run(work)

    async def secret(self) -> bytes:
        """Return the secret that the processes of this store share."""
        rows = await self._database.run(
            lambda t: t.rows("SELECT value FROM secrets WHERE name = 'processes'"), reads=True
        )
        ((value,),) = rows
        return bytes.fromhex(value)

    async def epochs_of_owner(self, owner_id: str) -> dict[str, int]:
        """Return the ids of an owner's sessions with their epochs."""
        rows = await self._database.run(
            lambda t: t.rows("SELECT id, epoch FROM sessions WHERE owner = ?", (owner_id,)), reads=True
        )
        return dict(rows)

    # Sessions.

    async def create_sessions(
        self,
        sessions: Sequence[SessionRow],
        *,
        most: int | None = None,
        most_of_principal: int | None = None,
        turns: Sequence[TurnRow] = (),
        like: tuple[SessionRow, int, int] | None = None,
    ) -> list[SessionRow]:
        """Write the new sessions of a request, or return those that it has created before.

        With ``turns`` each session has its first turn, which is about to begin. With ``like`` it
        has the ended turns of another session up to one turn, so many in number, without their
        request_ids. SessionLimitError if there would be more than ``most`` listed sessions with a
        turn, or more than ``most_of_principal`` of the principal; SessionMovedError if the other
        session is gone.
        """

        def work(t: Transaction) -> list[SessionRow]:
            first = sessions[0]
            if first.request_id:
                found = _of_request(t, first.principal, first.request_id, listed=first.listed)
                if found:
                    return found
            if most_of_principal is not None:
                of_principal = "SELECT count(*) FROM sessions WHERE listed = 1 AND principal = ?"
                (count,) = t.rows(of_principal, (first.principal,))[0]
                if count + len(sessions) > most_of_principal:
                    what = f"you keep {count} sessions, of at most {most_of_principal}: delete some"
                    raise SessionLimitError(what, limit=most_of_principal)
            if most is not None:
                (count,) = t.rows("SELECT count(*) FROM sessions WHERE listed = 1")[0]
                excess = count + len(sessions) - most
                if excess > 0 and not _delete_unused(t, excess):
                    raise SessionLimitError(f"{count} sessions are kept, of at most {most}")
            for index, session in enumerate(sessions):
                if not _insert(t, session):  # another process has answered the request just now
                    return _of_request(t, session.principal, session.request_id, listed=session.listed)
                if turns:
                    _insert_turn(t, session.id, turns[index])
                if like is not None:
                    _copy_turns(t, session.id, *like)
            return list(sessions)

        return await self._database.run(work)

    async def find_session(self, session_id: str) -> tuple[SessionRow, OwnerRow | None] | None:
        """Return a session, and its owner if that lives; None if there is no such session."""

        def work(t: Transaction) -> tuple[SessionRow, OwnerRow | None] | None:
            found = t.row(f"SELECT {_SESSION} FROM sessions WHERE id = ?", (session_id,))
            if found is None:
                return None
            row = _session_of(found)
            owner = t.row("SELECT id, address, place, beat FROM owners WHERE id = ?", (row.owner,))
            return row, None if owner is None else OwnerRow(*owner)

        return await self._database.run(work, reads=True)

    async def sessions_of_request(self, principal: str, request_id: str, *, listed: bool) -> list[SessionRow]:
        """Return the sessions that a principal's request has created."""
        return await self._database.run(lambda t: _of_request(t, principal, request_id, listed=listed), reads=True)

    async def take_over_session(self, session: SessionRow, owner_id: str) -> list[tuple[SessionRow, list[StoredTurn]]]:
        """Become the owner of a session without an owner, and read it.

        A generation's choices are taken over together, though some may have this owner already.
        Returns nothing if another process was faster, or the session is gone.
        """
        where = "id = ?"
        values: tuple[str, ...] = (session.id,)
        if not session.listed:
            where = f"listed = 0 AND {_OF_REQUEST}"
            values = (session.principal, session.request_id)

        def work(t: Transaction) -> list[tuple[SessionRow, list[StoredTurn]]]:
            t.execute(
                f"UPDATE sessions SET owner = ?, epoch = epoch + 1, idle_since = {_NOW} WHERE {where} "
                "AND (owner NOT IN (SELECT id FROM owners) OR (owner = ? AND id = ?))",
                (owner_id, *values, owner_id, session.id),
            )
            found = t.rows(
                f"SELECT {_SESSION} FROM sessions WHERE {where} AND owner = ? ORDER BY choice", (*values, owner_id)
            )
            return [(row, _turns(t, row.id)) for row in map(_session_of, found)]

        return await self._database.run(work)

    async def sessions_without_owner(self, target: str, most: int) -> list[SessionRow]:
        """Return sessions of a target whose turn was running when their owner ended."""
        statement = (
            f"SELECT {_SESSION} FROM sessions WHERE running_turn IS NOT NULL AND target = ? "
            "AND owner NOT IN (SELECT id FROM owners) LIMIT ?"
        )
        rows = await self._database.run(lambda t: t.rows(statement, (target, most)), reads=True)
        return [_session_of(row) for row in rows]

    async def list_sessions(
        self, principal: str, target: str, size: int, after: tuple[int, str] | None
    ) -> list[SessionRow]:
        """Return at most ``size`` listed sessions of a principal and a target, last created first,
        all created before ``after``."""
        where = "" if after is None else "AND (created < ? OR (created = ? AND id < ?))"
        values = () if after is None else (after[0], after[0], after[1])
        statement = f"SELECT {_SESSION} FROM sessions WHERE listed = 1 AND principal = ? AND target IN ('', ?) {where} "
        statement += "ORDER BY created DESC, id DESC LIMIT ?"
        rows = await self._database.run(lambda t: t.rows(statement, (principal, target, *values, size)), reads=True)
        return [_session_of(row) for row in rows]

    async def delete_session(self, session: SessionRow, *, expired: bool = False) -> None:
        """Delete a session for good; the store remembers that an ``expired`` one existed.

        SessionMovedError if another process owns it, or it is gone.
        """

        def work(t: Transaction) -> None:
            values = (session.id, session.owner, session.epoch)
            if not t.execute("DELETE FROM sessions WHERE id = ? AND owner = ? AND epoch = ?", values):
                raise _moved(session)
            if expired:
                _note_expired(t, [(session.principal, session.id)])

        await self._database.run(work)

    async def forget_request(self, principal: str, request_id: str) -> None:
        """Delete all choices of a generation, whichever process owns them."""
        statement = f"DELETE FROM sessions WHERE listed = 0 AND {_OF_REQUEST}"
        await self._database.run(lambda t: t.execute(statement, (principal, request_id)))

    async def expire_sessions(self, seconds: float) -> list[str]:
        """Delete sessions without an owner that have been idle for ``seconds`` of the store's time.

        A session whose turn should run, and that no process can run, stays for a multiple of that.
        Returns the ids of deleted sessions.
        """

        def work(t: Transaction) -> list[str]:
            idle = f"idle_since < {_NOW} - ?"  # which an index finds
            long = f"(running_turn IS NULL OR idle_since < {_NOW} - ?)"
            where = f"{idle} AND {long} AND owner NOT IN (SELECT id FROM owners)"
            values = (seconds, _TIMES_FOR_RUNNING * seconds)
            found = t.rows(f"SELECT principal, id FROM sessions WHERE {where} LIMIT 1000", values)
            return _expire(t, found)

        return await self._database.run(work)

    async def has_expired(self, principal: str, session_id: str) -> bool:
        """Return whether a principal's session expired."""
        statement, name = "SELECT 1 FROM expired WHERE id = ?", _expired_name(principal, session_id)
        return bool(await self._database.run(lambda t: t.rows(statement, (name,)), reads=True))

    async def list_turns(self, session_id: str) -> list[StoredTurn]:
        """Return a session's turns, in order."""
        return await self._database.run(lambda t: _turns(t, session_id), reads=True)

    # Turns.

    async def begin_turn(self, session: SessionRow, turn: TurnRow, counts: Counts) -> None:
        """Write a turn that is about to begin. SessionMovedError if another process owns it."""

        def work(t: Transaction) -> None:
            _update(t, session, counts, "?", turn.turn)
            # The row may be there already, if the answer to the first write was lost.
            t.execute("DELETE FROM turns WHERE session_id = ? AND turn >= ?", (session.id, turn.turn))
            _insert_turn(t, session.id, turn)

        await self._database.run(work)

    async def write_progress(self, progress: Sequence[tuple[SessionRow, int, int, bytes]]) -> list[str]:
        """Write tokens of each session's turn from a position on. Returns the ids of sessions that
        other processes own."""

        def work(t: Transaction) -> list[str]:
            moved = []
            for session, turn, position, tokens in progress:
                if not _holds(t, session):
                    moved.append(session.id)
                    continue
                t.execute(
                    "INSERT INTO progress VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (session.id, turn, position, tokens),
                )
            return moved

        return await self._database.run(work)

    async def end_turn(self, session: SessionRow, turn: int, end: EndRow, counts: Counts) -> None:
        """Write the end of a turn; later turns may have begun. SessionMovedError if another process
        owns its session."""

        def work(t: Transaction) -> None:
            _update(t, session, counts, "NULLIF(running_turn, ?)", turn)
            forgets = ", request_id = ''" if end.forgotten else ""
            t.execute(
                f"UPDATE turns SET tokens = ?, ended = ?{forgets} WHERE session_id = ? AND turn = ?",
                (end.tokens, end.payload, session.id, turn),
            )
            t.execute("DELETE FROM progress WHERE session_id = ? AND turn = ?", (session.id, turn))

        await self._database.run(work)


def _insert(t: Transaction, session: SessionRow) -> bool:
    """Insert a session; return False if its request has created its sessions already."""
    values = _values_of(session)
    marks = ", ".join("?" for _ in values)
    once = "ON CONFLICT (listed, principal, request_id, choice) WHERE request_id <> '' DO NOTHING"
    return t.execute(f"INSERT INTO sessions VALUES ({marks}, {_NOW}) {once}", values) == 1


def _delete_unused(t: Transaction, count: int) -> bool:
    """Delete sessions that never had a turn, the oldest of the principal that has most of them.

    To lose one costs its client a request; without room all clients would wait for an hour. Returns
    False if there are not as many.
    """
    unused = "listed = 1 AND turn_count = 0 AND running_turn IS NULL"
    most = f"SELECT principal FROM sessions WHERE {unused} GROUP BY principal ORDER BY count(*) DESC LIMIT 1"
    theirs = f"SELECT principal, id FROM sessions WHERE {unused} AND principal = ({most}) ORDER BY created, id LIMIT ?"
    while count:
        gone = _expire(t, t.rows(theirs, (count,)))
        if not gone:
            return False
        count -= len(gone)
    return True


def _expire(t: Transaction, found: Sequence[Sequence[str]]) -> list[str]:
    """Delete sessions, each given by principal and id, and remember that they existed."""
    for _, session_id in found:
        t.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    _note_expired(t, found)
    return [session_id for _, session_id in found]


def _insert_turn(t: Transaction, session_id: str, turn: TurnRow) -> None:
    t.execute(
        f"INSERT INTO turns (session_id, {', '.join(_BEGUN)}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (session_id, *astuple(turn)),
    )


def _holds(t: Transaction, session: SessionRow) -> bool:
    """Return whether an owner still owns its session. It is a write, so that no other process takes
    the session over before the transaction ends."""
    owns = "UPDATE sessions SET epoch = epoch WHERE id = ? AND owner = ? AND epoch = ?"
    return t.execute(owns, (session.id, session.owner, session.epoch)) == 1


def _moved(session: SessionRow) -> SessionMovedError:
    what = f"session {session.id} was deleted, or another process owns it"
    return SessionMovedError(what, session_id=session.id)


def _copy_turns(t: Transaction, session_id: str, source: SessionRow, last_turn: int, count: int) -> None:
    if not _holds(t, source):
        raise _moved(source)
    copied = t.execute(
        "INSERT INTO turns SELECT ?, turn, '', fingerprint, shared_count, prompt, payload, tokens, ended "
        "FROM turns WHERE session_id = ? AND turn <= ? AND ended IS NOT NULL",
        (session_id, source.id, last_turn),
    )
    if copied != count:
        raise _moved(source)


def _update(t: Transaction, session: SessionRow, counts: Counts, running_turn: str, turn: int) -> None:
    changed = t.execute(
        "UPDATE sessions SET last_active = ?, turn_count = ?, token_count = ?, message_count = ?, "
        f"running_turn = {running_turn}, target = ?, idle_since = {_NOW} WHERE id = ? AND owner = ? AND epoch = ?",
        (*astuple(counts), turn, session.target, session.id, session.owner, session.epoch),
    )
    if not changed:
        raise _moved(session)


def _expired_name(principal: str, session_id: str) -> str:
    """Return the name of an expired session, which only its principal can find."""
    return f"{principal}\n{session_id}"


def _note_expired(t: Transaction, sessions: Sequence[Sequence[str]]) -> None:
    """Remember expired sessions, each given by principal and id."""
    for principal, session_id in sessions:
        values = (_expired_name(principal, session_id),)
        t.execute(f"INSERT INTO expired VALUES (?, {_NOW}) ON CONFLICT DO NOTHING", values)
    (count,) = t.rows("SELECT count(*) FROM expired")[0] if sessions else (0,)
    if count > _MOST_EXPIRED:  # sorting them takes milliseconds
        t.execute(
            "DELETE FROM expired WHERE id NOT IN (SELECT id FROM expired ORDER BY since DESC LIMIT ?)",
            (_REMEMBERED_EXPIRED,),
        )


def _of_request(t: Transaction, principal: str, request_id: str, *, listed: bool) -> list[SessionRow]:
    statement = f"SELECT {_SESSION} FROM sessions WHERE listed = ? AND {_OF_REQUEST} ORDER BY choice"
    return [_session_of(row) for row in t.rows(statement, (int(listed), principal, request_id))]


def _turns(t: Transaction, session_id: str) -> list[StoredTurn]:
    noted: dict[int, list[tuple[int, bytes]]] = {}
    statement = "SELECT turn, position, tokens FROM progress WHERE session_id = ? ORDER BY turn, position"
    for turn, position, tokens in t.rows(statement, (session_id,)):
        noted.setdefault(turn, []).append((position, bytes(tokens)))
    statement = f"SELECT {', '.join(_BEGUN)}, tokens, ended FROM turns WHERE session_id = ? ORDER BY turn"
    turns = []
    for turn, request_id, fingerprint, shared_count, prompt, payload, tokens, ended in t.rows(statement, (session_id,)):
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


def _session_of(row: Sequence[Any]) -> SessionRow:
    session = SessionRow(*row)
    return replace(session, listed=bool(session.listed), fingerprint=bytes(session.fingerprint))
