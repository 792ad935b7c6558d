"""Work on a database: on a thread, or at once if the database is in memory.

::

    run(work) .. run(work) --> [thread: BEGIN, SAVEPOINT work, .., COMMIT] --> all answers
    run(work)              --> BEGIN, work, COMMIT                         --> its answer
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.errors import StoreUnavailableError
from slipstream.errors import SlipstreamError

log = logging.getLogger(__name__)

_LONGEST_SECONDS = 30.0
"""Longest wait for an answer. A database that takes longer counts as unavailable."""

_UNKNOWN = (
    "; whether it was done is not known: send the same request with the same request_id again, and it happens once "
    "(a request without a request_id may happen twice)"
)

_MOST_TOGETHER = 256
"""Most pieces of work in a transaction."""

Value = str | int | float | bytes | None
AnswerT = TypeVar("AnswerT")


class Transaction(ABC):
    """A transaction. Statements have ``?`` for their values."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement; return how many rows it changed."""

    @abstractmethod
    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""

    def row(self, statement: str, values: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        """Return the first row that a query finds; None if it finds none."""
        found = self.rows(statement, values)
        return found[0] if found else None


class NotBegunError(Exception):
    """A transaction could not begin, as while another process holds the lock. None of its work was
    tried."""


class Connection(Transaction):
    """An open database. An exception other than a SlipstreamError means that the database cannot do
    the work now."""

    begin_writing = "BEGIN"
    """The statement that begins a transaction with changes."""

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """True if the connection can be used after a fault."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @contextmanager
    def transaction(self, *, reads: bool) -> Iterator[None]:
        """Run the context in a transaction; with ``reads`` it changes nothing."""
        try:
            self.execute("BEGIN" if reads else self.begin_writing)
        except Exception as error:
            raise NotBegunError(str(error)) from error
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        self.execute("COMMIT")

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Run the context in a transaction that may make tables, in one process at a time."""
        with self.transaction(reads=False):
            yield

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Run the context so that it can be undone alone, within a transaction."""
        self.execute("SAVEPOINT piece")
        try:
            yield
        except SlipstreamError:
            self.execute("ROLLBACK TO SAVEPOINT piece")
            raise
        self.execute("RELEASE SAVEPOINT piece")

    def _roll_back(self) -> None:
        try:
            self.execute("ROLLBACK")
        except Exception as error:  # after some faults it is rolled back already
            log.debug("rolling back: %s", error)


@dataclass(eq=False, slots=True)
class _Piece(Generic[AnswerT]):
    work: Callable[[Transaction], AnswerT]
    reads: bool
    answer: AnswerT | None = None
    error: BaseException | None = None


class Database(ABC):
    """A database between `open` and `close`."""

    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        """``connect`` opens the database, and again after a fault; ``name`` is for messages."""
        self._connect = connect
        self._name = name
        self._connection: Connection | None = None
        self.on_trouble: Callable[[], None] = lambda: None
        """Callback on the event loop for each failure."""

    def __str__(self) -> str:
        return self._name

    def open(self) -> None:
        """Connect and begin to work. Raises what ``connect`` raises."""
        self._connection = self._connect()

    @abstractmethod
    def close(self) -> None:
        """Finish the work that is queued, if that can be done in time."""

    @abstractmethod
    async def run(self, work: Callable[[Transaction], AnswerT], *, reads: bool = False) -> AnswerT:
        """Do work in a transaction and return its answer; with ``reads`` it changes nothing.

        An exception undoes the work. StoreUnavailableError if the database cannot do it now. The
        work is done even if the caller is cancelled meanwhile.
        """

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _do(self, batch: Sequence[_Piece[Any]]) -> None:
        try:
            self._do_together(batch)
        except SlipstreamError as error:
            for piece in batch:
                piece.error = error
        except Exception as error:
            renewed = self._close_if_unusable()
            if len(batch) > 1:  # a write that fails must not fail the reads beside it
                writes_wait = isinstance(error, NotBegunError) and not renewed
                for piece in batch:
                    if writes_wait and not piece.reads:  # each write would wait as long again for one lock
                        self._fail(piece, error, outcome="not_done")
                    else:
                        self._do([piece])
            elif renewed:
                self._do_again(batch)
            else:
                self._fail(batch[0], error, outcome="not_done")  # the database has said so

    def _do_again(self, batch: Sequence[_Piece[Any]]) -> None:
        """Do the work on a new connection: the previous one was lost."""
        try:
            self._do_together(batch)
        except SlipstreamError as error:
            batch[0].error = error
        except Exception as error:
            self._close_if_unusable()
            self._fail(batch[0], error, outcome="unknown")

    def _do_together(self, batch: Sequence[_Piece[Any]]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        with self._connection.transaction(reads=all(piece.reads for piece in batch)):
            for piece in batch:
                piece.error = None
                try:
                    with self._connection.savepoint() if len(batch) > 1 else nullcontext():
                        piece.answer = piece.work(self._connection)
                except SlipstreamError as error:
                    if len(batch) == 1:
                        raise
                    piece.error = error

    def _fail(self, piece: _Piece[Any], error: Exception, *, outcome: str) -> None:
        what = "read from" if piece.reads else "written to"
        piece.error = _unavailable(
            f"sessions cannot be {what} {self._name}: {' '.join(str(error).split())}", piece, outcome
        )

    def _close_if_unusable(self) -> bool:
        """Close a connection that cannot be used any more; return whether there was one. The next
        piece of work opens another."""
        if self._connection is None or self._connection.is_usable:
            return False
        self._connection.close()
        self._connection = None
        return True


def _unavailable(what: str, piece: _Piece[Any], outcome: str) -> StoreUnavailableError:
    if piece.reads:
        return StoreUnavailableError(what)
    return StoreUnavailableError(what + (_UNKNOWN if outcome == "unknown" else ""), outcome=outcome)


class DatabaseAtHand(Database):
    """A database in this process's memory. Work takes microseconds, less than to wake a thread."""

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()

    async def run(self, work: Callable[[Transaction], AnswerT], *, reads: bool = False) -> AnswerT:
        """Do the work at once; see `Database.run`."""
        piece = _Piece(work, reads)
        self._do([piece])
        if piece.error is not None:
            raise piece.error
        return piece.answer  # type: ignore[return-value]  # it has one


@dataclass(eq=False, slots=True)
class _Awaited(_Piece[AnswerT]):
    outcome: asyncio.Future[AnswerT] = field(kw_only=True)

    def tell(self) -> None:
        """Tell the caller the answer or the error, if it still waits."""
        if self.outcome.done():
            return
        if self.error is not None:
            self.outcome.set_exception(self.error)
        else:
            self.outcome.set_result(self.answer)  # type: ignore[arg-type]  # it has one


class DatabaseOnThread(Database):
    """A database with a thread that waits for it, and connects again after a fault."""

    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        super().__init__(connect, name)
        self._pieces: queue.SimpleQueue[_Awaited[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def open(self) -> None:
        """Connect, and start the thread."""
        super().open()
        self._thread.start()

    def close(self) -> None:
        """Finish the queued work, and stop the thread."""
        self._pieces.put(None)
        self._thread.join(_LONGEST_SECONDS)

    async def run(self, work: Callable[[Transaction], AnswerT], *, reads: bool = False) -> AnswerT:
        """Do the work on the thread; see `Database.run`."""
        outcome: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        piece = _Awaited(work, reads, outcome=outcome)
        self._pieces.put(piece)
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                return await outcome
        except StoreUnavailableError:
            self.on_trouble()
            raise
        except TimeoutError:
            self.on_trouble()
            what = f"{self._name} has not answered for {_LONGEST_SECONDS:g} s"
            raise _unavailable(what, piece, "unknown") from None

    def _run(self) -> None:
        open_ = True
        while open_:
            batch: list[_Awaited[Any]] = []
            piece = self._pieces.get()
            while piece is not None:
                batch.append(piece)
                if len(batch) == _MOST_TOGETHER or self._pieces.empty():
                    break
                piece = self._pieces.get()
            open_ = piece is not None
            if batch:
                self._do(batch)
                _tell(batch)
        self._disconnect()


def _tell(batch: Sequence[_Awaited[Any]]) -> None:
    loop = batch[0].outcome.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_tell_all, batch)


def _tell_all(batch: Sequence[_Awaited[Any]]) -> None:
    for piece in batch:
        piece.tell()
