"""A turn as a task of its session's: rounds, commits, and a record that grows whether anybody reads
it or not.

::

    Turn.run --> Rounds.run --> Session.turn.commit --> TurnRecord.add --> readers, at their own pace
                                                    --> TurnWatch: whoever looks at rounds
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Protocol

from orchestrator.errors import SessionMovedError, ShuttingDownError, TurnCutError
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.session import Answer, Session
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord
from orchestrator.sessions.turns.watcher import TurnWatch


class Ending(Enum):
    """Why a turn is ended from outside."""

    CANCELLED = "cancelled"
    """By its client, or with its session."""
    SHUTTING_DOWN = "shutting_down"
    """By the server, which ends."""
    CUT = "cut"
    """It cannot be gone on with."""
    MOVED = "moved"
    """Another process runs it."""


class TurnWriter(Protocol):
    """Who writes down what becomes of a turn."""

    hands_over: bool
    """Whether a turn that this process cannot finish is gone on with by another."""
    writes_ahead: bool
    """Whether tokens are written down before they are told: where the same turn run again could say
    something else."""

    async def committing(self, tokens: Sequence[int]) -> None:
        """Write down tokens that are about to be told. SessionMovedError, StoreUnavailableError."""

    async def ended(self, ended: TurnEnded) -> bool:
        """Write down how the turn ended, which no reader has been told yet. False if another
        process owns the session: that one says how the turn ends. Raises nothing."""

    async def left(self, *, moved: bool) -> None:
        """The turn goes on elsewhere, with ``moved`` by now. Raises nothing."""


class TurnPermit(Protocol):
    """What lets a turn run."""

    waited: float
    """Seconds that the turn waited for it."""

    def answered(self) -> None:
        """The turn has its first token."""


class Turn:
    """One running turn. However it ends, what was committed stays, and its record gets its last
    event."""

    def __init__(
        self,
        session: Session,
        answer: Answer,
        record: TurnRecord,
        resolved: ResolvedTurn,
        rounds: Rounds,
        own: SessionRounds,
        *,
        principal: str,
        watch: TurnWatch,
        after: TurnRecord | None,
        writer: TurnWriter,
        permit: TurnPermit,
    ) -> None:
        """``principal`` is whose it is, ``own`` the session's side of the ``rounds``. With
        ``after`` the turn begins once that one has a token, so that it finds the prompt they share
        in the prefix cache. The ``writer`` hears of the end before readers do."""
        self.record = record
        self.principal = principal
        self.task: asyncio.Task[None] | None = None
        """Set by whoever starts the turn."""
        self._session = session
        self._answer = answer
        self._resolved = resolved
        self._rounds = rounds
        self._own = own
        self._after = after
        self._writer = writer
        self._permit = permit
        self.begun = time.monotonic() - permit.waited
        """When it was asked for."""
        self.statistics = TurnStatistics(admission=permit.waited, queue=permit.waited)
        self._prefilled_count = 0
        self._ending: Ending | None = None
        self._inside = False
        self._watch = watch

    @property
    def rests(self) -> bool:
        """Whether its draft is left alone because it would not pay."""
        return self._own.drafting.speculation.planner.rests

    @property
    def can_be_noted(self) -> bool:
        """Whether its tokens are all that a reader gets of it, and nobody has written them before
        they were told."""
        return self._resolved.tells_tokens_only and not self._writer.writes_ahead

    def end(self, why: Ending) -> None:
        """Have the turn end where it stands. Await its task to see it ended."""
        if self._ending is None and self.record.ended is None:
            self._ending = why
            if self._inside and self.task is not None:  # a task that has not begun would never reach its own end
                self.task.cancel()

    async def run(self) -> None:
        """Rounds until the turn has its answer, cannot go on, or is ended. Raises nothing."""
        self._inside = True
        error: Exception | None = None
        try:
            if self._after is not None and self._ending is None:
                await self._after.begun()
            while self._answer.finish_reason is None and self._ending is None:
                await self._round()
        except asyncio.CancelledError:
            self._ending = self._ending or Ending.SHUTTING_DOWN
        except SessionMovedError:
            self._ending = Ending.MOVED
        except Exception as failure:
            error = failure
        self._inside = False
        if self._answer.finish_reason is None:
            if self._ending is Ending.MOVED or (self._ending is Ending.SHUTTING_DOWN and self._writer.hands_over):
                await self._leave()
                return
            if self._ending is Ending.CUT:
                error = TurnCutError(
                    f"the process that ran the turn ended after {self._answer.generated_count} tokens or a few more: under the "
                    "ratio test log-probabilities and origins cannot be had again"
                )
            if self._ending is Ending.SHUTTING_DOWN:
                error = ShuttingDownError(
                    f"the server is shutting down: the turn was cut after {self._answer.generated_count} tokens"
                )
        await self._end(error)

    async def _round(self) -> None:
        number = self.statistics.round_count
        note = self._watch.begin_round(number + 1, len(self._session.tokens))
        terms = self._resolved.terms
        if terms.logprobs is not None and number:
            terms = replace(terms, logprobs=replace(terms.logprobs, prompt=False))  # the first round has brought them
        try:
            result = await self._rounds.run(self._own, self._session.tokens, terms, self._answer.room, note)
        except BaseException as error:
            note.fail(error)
            self._watch.round_ended(note, None)
            raise
        if self._writer.writes_ahead:
            await self._writer.committing(result.tokens)
        note.end(result, self._take(result))
        self._watch.round_ended(note, result)

    def _take(self, outcome: RoundResult) -> int:
        """Commit what a round brought, up to the token that ends the turn; returns how many that
        are."""
        if not self.statistics.round_count:
            self.statistics.time_to_first_token = time.monotonic() - self.begun
            self._prefilled_count = outcome.prefilled_count
            self._permit.answered()
        commit = self._answer.commit(outcome.tokens)
        self.statistics.add(outcome, len(commit.tokens))
        origins = outcome.origins if self.record.tells_origins else ()
        self.record.add(commit, origins, outcome.logprobs, outcome.prompt_logprobs)
        return len(commit.tokens)

    async def _end(self, error: Exception | None) -> None:
        ended = self._close(self._answer.cut_short(), error)
        if await self._writer.ended(ended):
            self.record.end(ended)
        else:
            self.record.break_off(self._moved())

    async def _leave(self) -> None:
        """What has been said stays said: whoever goes on with the turn says it again."""
        why: Exception = self._moved()
        if self._ending is Ending.SHUTTING_DOWN:
            why = ShuttingDownError("the server is shutting down: the turn goes on where it is looked for next")
        await self._writer.left(moved=self._ending is Ending.MOVED)
        self._answer.cut_short()
        self._close("", why)
        self.record.break_off(why)

    def _moved(self) -> SessionMovedError:
        return SessionMovedError("the turn goes on in another process", session_id=self._session.id)

    def _close(self, text: str, error: Exception | None) -> TurnEnded:
        """Have no part in the rounds and the session any more."""
        answer, session = self._answer, self._session
        assert answer.finish_reason is not None
        self.statistics.total = time.monotonic() - self.begun
        ended = TurnEnded(
            answer.finish_reason,
            prompt_token_count=answer.prompt_length,
            cached_token_count=self._cached_count,
            generated_token_count=answer.generated_count,
            statistics=self.statistics,
            text=text,
            error=error,
        )
        self._watch.ended(ended, answer.text)
        self._rounds.end_turn(self._own, session.tokens, answer.generated_count)
        session.end_turn()
        return ended

    @property
    def _cached_count(self) -> int:
        return max(0, self._answer.prompt_length - self._prefilled_count) if self.statistics.round_count else 0
