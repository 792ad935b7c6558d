"""One thread that talks to a database: what has gathered while it was busy shares the next transaction.

::

    run(work) .. run(work) --> [thread: BEGIN, SAVEPOINT work, SAVEPOINT work .., COMMIT] --> all of them have their answers
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orchestrator.errors import StoreUnavailableError
from slipstream.errors import SlipstreamError

log = logging.getLogger(__name__)

_LONGEST_SECONDS = 30.0
"""For one answer: a database that is there and says nothing is away."""

_MOST_TOGETHER = 256
"""Pieces of work in a transaction."""

Value = str | int | float | bytes | None
AnswerT = TypeVar("AnswerT")


class Transaction(ABC):
    """What work is done with. Statements have ``?`` for their values."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement; returns how many rows it changed."""

    @abstractmethod
    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """What a query finds."""

    def row(self, statement: str, values: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        """The first row that a query finds."""
        found = self.rows(statement, values)
        return found[0] if found else None


class Connection(Transaction):
    """An open database. Whatever it raises that is no SlipstreamError means that the database cannot do it now."""

    begin_writing = "BEGIN"
    """Begins a transaction that is going to change something."""

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """Whether it can be gone on with after a fault."""

    @abstractmethod
    def close(self) -> None:
        """Give it up."""

    @contextmanager
    def transaction(self, *, reads: bool) -> Iterator[None]:
        """All or nothing of what happens inside; with ``reads`` nothing is changed."""
        self.execute("BEGIN" if reads else self.begin_writing)
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        self.execute("COMMIT")

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """A transaction in which tables may be made: one process at a time."""
        with self.transaction(reads=False):
            yield

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """All or nothing of what happens inside, within a transaction."""
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
        except Exception as error:  # some faults have rolled it back already
            log.debug("rolling back: %s", error)


@dataclass(eq=False, slots=True)
class _Piece(Generic[AnswerT]):
    work: Callable[[Transaction], AnswerT]
    outcome: asyncio.Future[AnswerT]
    loop: asyncio.AbstractEventLoop
    reads: bool
    answer: AnswerT | None = None
    error: BaseException | None = None


class Database:
    """A database behind one thread, from `open` to `close`."""

    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        """``connect`` opens it, on the thread, and again after a fault; ``name`` is what people call it."""
        self._connect = connect
        self._name = name
        self._pieces: queue.SimpleQueue[_Piece[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._connection: Connection | None = None

    def __str__(self) -> str:
        return self._name

    def open(self) -> None:
        """Connect and begin to work. What ``connect`` raises."""
        self._connection = self._connect()
        self._thread.start()

    def close(self) -> None:
        """Finish what has been asked for, if that can be done in time."""
        self._pieces.put(None)
        self._thread.join(_LONGEST_SECONDS)

    async def run(self, work: Callable[[Transaction], AnswerT], *, reads: bool = False) -> AnswerT:
        """The answer of work that is done in a transaction, of which nothing stays if it raises; with ``reads`` it changes
        nothing.

        StoreUnavailableError if the database cannot do it now. It is done even if the caller is cancelled meanwhile.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[AnswerT] = loop.create_future()
        self._pieces.put(_Piece(work, outcome, loop, reads))
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                return await outcome
        except TimeoutError:
            raise StoreUnavailableError(f"{self._name} has not answered for {_LONGEST_SECONDS:g} s") from None

    def _run(self) -> None:
        open_ = True
        while open_:
            batch: list[_Piece[Any]] = []
            piece = self._pieces.get()
            while piece is not None:
                batch.append(piece)
                if len(batch) == _MOST_TOGETHER or self._pieces.empty():
                    break
                piece = self._pieces.get()
            open_ = piece is not None
            if batch:
                self._do(batch)
                self._tell(batch)
        if self._connection is not None:
            self._connection.close()

    def _do(self, batch: list[_Piece[Any]]) -> None:
        try:
            self._do_together(batch)
        except SlipstreamError as error:
            for piece in batch:
                piece.error = error
        except Exception as error:
            renewed = self._drop_if_unusable()
            if len(batch) > 1:  # what cannot be written takes nothing along that can be read
                for piece in batch:
                    self._do([piece])
            elif renewed:
                self._do_anew(batch)
            else:
                self._fail(batch[0], error)

    def _do_anew(self, batch: list[_Piece[Any]]) -> None:
        """On another connection: the one that was there had been lost before."""
        try:
            self._do_together(batch)
        except SlipstreamError as error:
            batch[0].error = error
        except Exception as error:
            self._drop_if_unusable()
            self._fail(batch[0], error)

    def _do_together(self, batch: list[_Piece[Any]]) -> None:
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

    def _fail(self, piece: _Piece[Any], error: Exception) -> None:
        what = "read from" if piece.reads else "written to"
        piece.error = StoreUnavailableError(f"sessions cannot be {what} {self._name}: {' '.join(str(error).split())}")

    def _drop_if_unusable(self) -> bool:
        """Whether there was a connection that is none any more: the next piece of work opens another."""
        if self._connection is None or self._connection.is_usable:
            return False
        self._connection.close()
        self._connection = None
        return True

    def _tell(self, batch: list[_Piece[Any]]) -> None:
        loop = batch[0].loop
        if not loop.is_closed():
            loop.call_soon_threadsafe(_tell_all, batch)


def _tell_all(batch: list[_Piece[Any]]) -> None:
    for piece in batch:
        if piece.outcome.done():  # nobody waits any more
            continue
        if piece.error is not None:
            piece.outcome.set_exception(piece.error)
        else:
            piece.outcome.set_result(piece.answer)
