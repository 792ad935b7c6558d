"""The store's operations, in SQL that SQLite and PostgreSQL both understand.

A session has one owner, and every write states the owner's epoch: a process that has lost ownership
can no longer write. An owner is a row whose beat grows. A process that sees a beat stand still for
a lease removes the owner, and then any process may take over its sessions.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import astuple

from orchestrator.errors import SessionLimitError
from orchestrator.store.acceptance import AcceptanceHistory
from orchestrator.store.database import Database, Transaction
from orchestrator.store.rows import Counts, EndRow, OwnerRow, SessionRow, StoredTurn, TurnRow
from orchestrator.store.statements import (
    NOW,
    OF_REQUEST,
    SESSION_COLUMNS,
    copy_turns,
    delete_unused_sessions,
    expire_sessions,
    expired_name,
    insert_session,
    insert_turn,
    moved_error,
    note_expired,
    session_of,
    sessions_of_request,
    still_owns,
    turns_of,
    update_session,
)

_TRIAL_BYTES = 2**18
"""Size of a turn with a prompt of some ten thousand tokens and its session's text."""

_TIMES_FOR_RUNNING = 24
"""Factor of the expiry time for a session whose turn waits for weights that no process serves."""


class Store:
    """Sessions, their turns and their owners, in a database.

    Any method raises StoreUnavailableError if the database cannot be reached.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.acceptance = AcceptanceHistory(database)
        """Acceptance by hour."""

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
                found = sessions_of_request(t, first.principal, first.request_id, listed=first.listed)
                if found:
                    return found
            if most_of_principal is not None:
                of_principal = "SELECT count(*) FROM sessions WHERE listed = 1 AND principal = ?"
                (count,) = t.rows(of_principal, (first.principal,))[0]
                if count + len(sessions) > most_of_principal:
                    what = f"you have {count} sessions, of at most {most_of_principal}: delete some"
                    raise SessionLimitError(what, limit=most_of_principal)
            if most is not None:
                (count,) = t.rows("SELECT count(*) FROM sessions WHERE listed = 1")[0]
                excess = count + len(sessions) - most
                if excess > 0 and not delete_unused_sessions(t, excess):
                    raise SessionLimitError(f"{count} sessions are stored, of at most {most}")
            for index, session in enumerate(sessions):
                if not insert_session(t, session):  # another process has answered the request just now
                    return sessions_of_request(t, session.principal, session.request_id, listed=session.listed)
                if turns:
                    insert_turn(t, session.id, turns[index])
                if like is not None:
                    copy_turns(t, session.id, *like)
            return list(sessions)

        return await self._database.run(work)

    async def find_session(self, session_id: str) -> tuple[SessionRow, OwnerRow | None] | None:
        """Return a session, and its owner if that lives; None if there is no such session."""

        def work(t: Transaction) -> tuple[SessionRow, OwnerRow | None] | None:
            found = t.row(f"SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?", (session_id,))
            if found is None:
                return None
            row = session_of(found)
            owner = t.row("SELECT id, address, place, beat FROM owners WHERE id = ?", (row.owner,))
            return row, None if owner is None else OwnerRow(*owner)

        return await self._database.run(work, reads=True)

    async def sessions_of_request(self, principal: str, request_id: str, *, listed: bool) -> list[SessionRow]:
        """Return the sessions that a principal's request has created."""
        return await self._database.run(
            lambda t: sessions_of_request(t, principal, request_id, listed=listed), reads=True
        )

    async def take_over_session(self, session: SessionRow, owner_id: str) -> list[tuple[SessionRow, list[StoredTurn]]]:
        """Become the owner of a session without an owner, and read it.

        A generation's choices are taken over together, though some may have this owner already.
        Returns nothing if another process was faster, or the session is gone.
        """
        where = "id = ?"
        values: tuple[str, ...] = (session.id,)
        if not session.listed:
            where = f"listed = 0 AND {OF_REQUEST}"
            values = (session.principal, session.request_id)

        def work(t: Transaction) -> list[tuple[SessionRow, list[StoredTurn]]]:
            t.execute(
                f"UPDATE sessions SET owner = ?, epoch = epoch + 1, idle_since = {NOW} WHERE {where} "
                "AND (owner NOT IN (SELECT id FROM owners) OR (owner = ? AND id = ?))",
                (owner_id, *values, owner_id, session.id),
            )
            found = t.rows(
                f"SELECT {SESSION_COLUMNS} FROM sessions WHERE {where} AND owner = ? ORDER BY choice",
                (*values, owner_id),
            )
            return [(row, turns_of(t, row.id)) for row in map(session_of, found)]

        return await self._database.run(work)

    async def sessions_without_owner(self, target: str, most: int) -> list[SessionRow]:
        """Return sessions of a target whose turn was running when their owner ended."""
        statement = (
            f"SELECT {SESSION_COLUMNS} FROM sessions WHERE running_turn IS NOT NULL AND target = ? "
            "AND owner NOT IN (SELECT id FROM owners) LIMIT ?"
        )
        rows = await self._database.run(lambda t: t.rows(statement, (target, most)), reads=True)
        return [session_of(row) for row in rows]

    async def list_sessions(
        self, principal: str, target: str, size: int, after: tuple[int, str] | None
    ) -> list[SessionRow]:
        """Return at most ``size`` listed sessions of a principal and a target, last created first,
        all created before ``after``."""
        where = "" if after is None else "AND (created < ? OR (created = ? AND id < ?))"
        values = () if after is None else (after[0], after[0], after[1])
        statement = (
            f"SELECT {SESSION_COLUMNS} FROM sessions WHERE listed = 1 AND principal = ? AND target IN ('', ?) {where} "
        )
        statement += "ORDER BY created DESC, id DESC LIMIT ?"
        rows = await self._database.run(lambda t: t.rows(statement, (principal, target, *values, size)), reads=True)
        return [session_of(row) for row in rows]

    async def delete_session(self, session: SessionRow, *, expired: bool = False) -> None:
        """Delete a session for good; the store remembers that an ``expired`` one existed.

        SessionMovedError if another process owns it, or it is gone.
        """

        def work(t: Transaction) -> None:
            values = (session.id, session.owner, session.epoch)
            if not t.execute("DELETE FROM sessions WHERE id = ? AND owner = ? AND epoch = ?", values):
                raise moved_error(session)
            if expired:
                note_expired(t, [(session.principal, session.id)])

        await self._database.run(work)

    async def forget_request(self, principal: str, request_id: str) -> None:
        """Delete all choices of a generation, whichever process owns them."""
        statement = f"DELETE FROM sessions WHERE listed = 0 AND {OF_REQUEST}"
        await self._database.run(lambda t: t.execute(statement, (principal, request_id)))

    async def expire_sessions(self, seconds: float) -> list[str]:
        """Delete sessions without an owner that have been idle for ``seconds`` of the store's time.

        A session whose turn should run, and that no process can run, stays for a multiple of that.
        Returns the ids of deleted sessions.
        """

        def work(t: Transaction) -> list[str]:
            idle = f"idle_since < {NOW} - ?"  # which an index finds
            long = f"(running_turn IS NULL OR idle_since < {NOW} - ?)"
            where = f"{idle} AND {long} AND owner NOT IN (SELECT id FROM owners)"
            values = (seconds, _TIMES_FOR_RUNNING * seconds)
            found = t.rows(f"SELECT principal, id FROM sessions WHERE {where} LIMIT 1000", values)
            return expire_sessions(t, found)

        return await self._database.run(work)

    async def has_expired(self, principal: str, session_id: str) -> bool:
        """Return whether a principal's session expired."""
        statement, name = "SELECT 1 FROM expired WHERE id = ?", expired_name(principal, session_id)
        return bool(await self._database.run(lambda t: t.rows(statement, (name,)), reads=True))

    async def list_turns(self, session_id: str) -> list[StoredTurn]:
        """Return a session's turns, in order."""
        return await self._database.run(lambda t: turns_of(t, session_id), reads=True)

    # Turns.

    async def find_turn(self, session_id: str, turn: int) -> StoredTurn | None:
        """Return one turn of a session; None if there is none."""
        found = await self._database.run(lambda t: turns_of(t, session_id, turn), reads=True)
        return found[0] if found else None

    async def write_payload(self, session: SessionRow) -> None:
        """Write a session's payload. SessionMovedError if its owner does not own it."""

        def work(t: Transaction) -> None:
            values = (session.payload, session.id, session.owner, session.epoch)
            if not t.execute("UPDATE sessions SET payload = ? WHERE id = ? AND owner = ? AND epoch = ?", values):
                raise moved_error(session)

        await self._database.run(work)

    async def begin_turn(self, session: SessionRow, turn: TurnRow, counts: Counts) -> None:
        """Write a turn that is about to begin. SessionMovedError if another process owns it."""

        def work(t: Transaction) -> None:
            update_session(t, session, counts, "?", turn.turn)
            # The row may be there already, if the answer to the first write was lost.
            t.execute("DELETE FROM turns WHERE session_id = ? AND turn >= ?", (session.id, turn.turn))
            insert_turn(t, session.id, turn)

        await self._database.run(work)

    async def write_progress(self, progress: Sequence[tuple[SessionRow, int, int, bytes]]) -> list[str]:
        """Write tokens of each session's turn from a position on. Returns the ids of sessions that
        other processes own."""

        def work(t: Transaction) -> list[str]:
            moved = []
            for session, turn, position, tokens in progress:
                if not still_owns(t, session):
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
            update_session(t, session, counts, "NULLIF(running_turn, ?)", turn)
            forgets = ", request_id = ''" if end.forgotten else ""
            t.execute(
                f"UPDATE turns SET tokens = ?, ended = ?{forgets} WHERE session_id = ? AND turn = ?",
                (end.tokens, end.payload, session.id, turn),
            )
            t.execute("DELETE FROM progress WHERE session_id = ? AND turn = ?", (session.id, turn))

        await self._database.run(work)
