"""A turn: rounds, commits, and a record that grows whether it is read or not.

::

    run_rounds --> Rounds.run --> Answer.commit --> TurnRecord.add --> readers, at their own pace
                                                --> TurnWatch: traces, totals, the log
    finish     --> TurnWriter (the store) --> TurnWatch --> TurnRecord.end
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from orchestrator.errors import SessionMovedError, ShuttingDownError, TurnCutError
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.session import Answer, Session
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import Ending, TurnEnded, TurnRecord, TurnWatch


class TurnWriter(Protocol):
    """Writes down a turn's progress and its end."""

    hands_over: bool
    """True if another process resumes a turn that this process cannot finish."""
    writes_ahead: bool
    """True if tokens are written before readers get them. A turn needs this if it would generate
    other tokens when it is run again."""

    async def write_ahead(self, tokens: Sequence[int]) -> None:
        """Write tokens that readers are about to get. SessionMovedError."""

    async def write_end(self, ended: TurnEnded) -> bool:
        """Write how the turn ended, before readers are told. Returns False if another process owns
        the session: that process says how the turn ends. Raises nothing."""

    async def hand_over(self, *, moved: bool) -> None:
        """Leave the turn to another process, which with ``moved`` runs it already. Raises
        nothing."""


class TurnPermit(Protocol):
    """The admission permit that lets a turn run."""

    waited: float
    """Seconds that the turn waited for it."""

    def note_first_token(self) -> None:
        """Note that the turn has its first token."""

    def release(self, token_count: int = 0) -> None:
        """Release the permit after a turn of so many tokens."""


class Turn:
    """One turn. However it ends, committed tokens stay, and its record gets its last event.

    A task runs `run_rounds`, and cancelling it with an `Ending` as message ends the turn where it
    stands. Another task runs `finish`, which awaits the first.
    """

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
        """``principal`` owns the session, and ``own`` is the session's side of the ``rounds``.

        With ``after`` the turn begins once that other turn has a token: then it finds the prompt
        that they share in the prefix cache.
        """
        self.record = record
        self.principal = principal
        self.permit = permit
        self.begun = time.monotonic() - permit.waited
        """When the turn was requested, by the monotonic clock."""
        self.statistics = TurnStatistics(admission=permit.waited, queue=permit.waited)
        self._session = session
        self._answer = answer
        self._resolved = resolved
        self._rounds = rounds
        self._own = own
        self._after = after
        self._writer = writer
        self._watch = watch
        self._prefilled_count = 0

    @property
    def is_not_drafting(self) -> bool:
        """True if the turn leaves its draft alone because drafting would not pay."""
        return self._own.run.rests

    async def run_rounds(self) -> Exception | None:
        """Run rounds until the turn has its answer, or return why it cannot go on."""
        try:
            if self._after is not None:
                await self._after.begun()
            while self._answer.finish_reason is None:
                await self._run_round()
        except Exception as failure:
            return failure
        return None

    async def finish(self, rounds: asyncio.Task[Exception | None], why_cancelled: Callable[[], Ending | None]) -> None:
        """Wait for the rounds, and end the turn. Raises nothing."""
        failure: Exception | None = None
        ending: Ending | None = None
        try:
            failure = await rounds
        except asyncio.CancelledError:
            ending = why_cancelled() or Ending.SHUTTING_DOWN  # a task group that fails says no reason
        if isinstance(failure, SessionMovedError):
            failure, ending = None, Ending.MOVED
        if self._answer.finish_reason is None:
            if ending is Ending.MOVED or (ending is Ending.SHUTTING_DOWN and self._writer.hands_over):
                await self._hand_over(ending)
                return
            if ending is Ending.CUT:
                failure = TurnCutError(
                    f"the process that ran the turn ended after {self._answer.generated_count} tokens or a few more: under the "
                    "ratio test log-probabilities and origins cannot be had again"
                )
            if ending is Ending.SHUTTING_DOWN:
                failure = ShuttingDownError(
                    f"the server is shutting down: the turn was cut after {self._answer.generated_count} tokens"
                )
        await self._end(failure)

    def release_permit(self) -> None:
        """Release the admission permit: the turn has ended."""
        self.permit.release(self.record.token_count)

    async def _run_round(self) -> None:
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
            await self._writer.write_ahead(result.tokens)
        note.end(result, self._commit(result))
        self._watch.round_ended(note, result)

    def _commit(self, outcome: RoundResult) -> int:
        """Commit a round's tokens up to the one that ends the turn; return how many those are."""
        if not self.statistics.round_count:
            self.statistics.time_to_first_token = time.monotonic() - self.begun
            self._prefilled_count = outcome.prefilled_count
            self.permit.note_first_token()
        commit = self._answer.commit(outcome.tokens)
        self.statistics.add(outcome, len(commit.tokens))
        origins = outcome.origins if self.record.tells_origins else ()
        self.record.add(commit, origins, outcome.logprobs, outcome.prompt_logprobs)
        return len(commit.tokens)

    async def _end(self, error: Exception | None) -> None:
        """Write the turn's end, count it, and tell its readers, in this order."""
        ended = self._leave_session(self._answer.cut_short(), error)
        if await self._writer.write_end(ended):
            self._watch.ended(ended, self._answer.text)
            self.record.end(ended)
        else:
            self._break_off(ended, self._moved())

    async def _hand_over(self, ending: Ending) -> None:
        """Leave the turn to another process, which tells its readers the same text again."""
        why: Exception = self._moved()
        if ending is Ending.SHUTTING_DOWN:
            why = ShuttingDownError("the server is shutting down: the turn goes on in the process that is asked next")
        await self._writer.hand_over(moved=ending is Ending.MOVED)
        self._answer.cut_short()
        self._break_off(self._leave_session("", why), why)

    def _break_off(self, ended: TurnEnded, why: Exception) -> None:
        """End the turn in this process alone: its owner counts it, and tells how it ends."""
        self._watch.ended(replace(ended, error=why), self._answer.text)
        self.record.break_off(why)

    def _moved(self) -> SessionMovedError:
        return SessionMovedError("the turn goes on in another process", session_id=self._session.id)

    def _leave_session(self, text: str, error: Exception | None) -> TurnEnded:
        """Take the turn out of the rounds and of its session; return its last event."""
        answer, session = self._answer, self._session
        assert answer.finish_reason is not None
        self.statistics.total = time.monotonic() - self.begun
        if self.statistics.round_count:  # without a round no peer was found
            self.statistics.absent_source = self._rounds.absent_source(self._own, self._resolved.terms)
        ended = TurnEnded(
            answer.finish_reason,
            prompt_token_count=answer.prompt_length,
            cached_token_count=self._cached_count,
            generated_token_count=answer.generated_count,
            statistics=self.statistics,
            text=text,
            error=error,
            stop_string=answer.stop_string,
        )
        self._rounds.end_turn(self._own, answer.generated_count)
        session.end_turn()
        return ended

    @property
    def _cached_count(self) -> int:
        return max(0, self._answer.prompt_length - self._prefilled_count) if self.statistics.round_count else 0
