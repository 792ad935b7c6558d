"""Starts turns: of messages, of generations, and those that another process has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from opentelemetry.context import Context

from orchestrator.errors import SessionMovedError, StoreUnavailableError
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.admission.admission import Admission
from orchestrator.sessions.admission.demand import AdmissionPermit, Demand, releasing_unused
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.messages import Message
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.session import RenderedPrefix, common_prefix_length
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.payloads import TurnPayload, end_row, resumable
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.durability.token_bytes import tokens_of
from orchestrator.sessions.turns.pair import ServedPair
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn import Turn
from orchestrator.sessions.turns.turn_record import Ending, TurnEnded, TurnRecord, TurnStarted
from orchestrator.sessions.turns.watcher import TurnBegun, Watcher
from orchestrator.store.rows import StoredTurn
from slipstream.telemetry.tracing import context_of

log = logging.getLogger(__name__)

_LARGE = 20_000
"""Tokens and log-probabilities of a turn from which on a thread encodes its end: that takes
milliseconds, and the event loop must not wait."""

_RETRY_SECONDS = 1.0
"""Seconds between two tries to write tokens ahead."""


class TurnStarter:
    """Starts turns that are written down; their tasks belong to `TurnTasks`."""

    def __init__(
        self,
        loaded: LoadedSessions,
        persistence: Persistence,
        admission: Admission,
        tasks: TurnTasks,
        watcher: Watcher,
        served: ServedPair,
    ) -> None:
        self.loaded = loaded
        self.persistence = persistence
        self.served = served
        self._admission = admission
        self._tasks = tasks
        self._watcher = watcher
        self._spent: SessionRounds | None = None
        """Rounds that all ended generations share: there are thousands, and rounds are large."""

    def start_turn(
        self,
        record: SessionRecord,
        prompt: list[int],
        resolved: ResolvedTurn,
        request_id: str,
        parent: Context,
        permit: AdmissionPermit,
        *,
        said: Sequence[Message],
        rendered: RenderedPrefix | None = None,
        after: TurnRecord | None = None,
        told: Sequence[int] = (),
    ) -> TurnRecord:
        """Start a turn that is written down, of which readers have been ``told`` some tokens
        before.

        A turn that begins ``after`` another has prefilled the same prompt finds its pages in the
        prefix cache.
        """
        pair, session = self.served.pair, record.session
        shared = common_prefix_length(session.tokens, prompt)
        lost = len(session.tokens) - shared
        rule = resolved.terms.rule
        asks_privacy = resolved.terms.do_not_collect
        answer = session.begin_turn(list(prompt), rule, resolved.limits, said, rendered, is_private=asks_privacy)
        resolved = resolved.in_session(is_private=session.is_private)
        pair.rounds.begin_turn(record.rounds, shared, recompute=resolved.wants_prompt_logprobs)
        started = TurnStarted(session.id, request_id, rule.seed, len(prompt))
        turn_record = TurnRecord(
            session.turn_count,
            started,
            tells_origins=resolved.tells_origins,
            tells_token_bytes=resolved.tells_token_bytes,
        )
        if told:
            turn_record.add(answer.commit(told), ())
        writer = _Writer(self, record, turn_record, writes_ahead=rule.draws_ratios)
        record.stored.noted_count = turn_record.token_count
        record.stored.notes_progress = resolved.tells_tokens_only and not writer.writes_ahead
        shown = said[-1].content if said else session.codec.decode(prompt) if self._watcher.shows_text else None
        watch = self._watcher.begin_turn(
            TurnBegun(
                pair.target.name,
                pair.target.weights_fingerprint,
                session.id,
                record.stored.principal,
                session.turn_count,
                resolved,
                record.window,
                parent,
                record.traced,
                shown,
                lost,
            )
        )
        turn = Turn(
            session,
            answer,
            turn_record,
            resolved,
            pair.rounds,
            record.rounds,
            principal=record.stored.principal,
            watch=watch,
            after=after,
            writer=writer,
            permit=permit,
        )
        record.running, record.traced = turn_record, watch.trace_context
        self._tasks.start_turn(turn)
        permit.is_in_use = True
        record.turns.add(turn_record)
        return turn_record

    def resume_turn(
        self, record: SessionRecord, stored: StoredTurn, begun: TurnPayload, after: TurnRecord | None
    ) -> TurnRecord:
        """Resume a turn that another process has left."""
        log.info("resuming turn %d of session %s", stored.begun.turn, record.session.id)
        pair, session = self.served.pair, record.session
        session.turn_count = stored.begun.turn - 1
        prompt = session.prompt_of(stored.begun.shared_count, tokens_of(stored.begun.prompt))
        resolved = resumable(begun.resolved, pair.limits, draft_fits=pair.mismatch is None)
        principal = Principal(record.stored.principal)  # without limits: the turn had its permit
        permit = self._admission.admit_taken_over(
            Demand(principal, len(prompt), len(prompt), resolved.room(len(prompt)))
        )
        with releasing_unused([permit]):
            turn = self.start_turn(
                record,
                prompt,
                resolved,
                stored.begun.request_id,
                context_of(begun.traceparent),
                permit,
                said=begun.said,
                after=after,
                told=tokens_of(stored.tokens),
            )
        if stored.tokens and not resolved.tells_tokens_only:
            self._tasks.request_cancel(turn, Ending.CUT)  # log-probabilities and origins of those tokens are lost
        return turn

    def note_end(self, record: SessionRecord, turn: TurnRecord, ended: TurnEnded) -> None:
        """Note in memory that a turn has ended."""
        record.running = None
        if ended.error is not None and not ended.generated_token_count:  # undone: the same request may try again
            record.requests.forget(turn.started.request_id)
        record.turns.trim()
        if not record.stored.listed:  # only the turn's record is still needed
            self.served.release(record.rounds)
            record.session.clear()
            if self._spent is None:
                self._spent = self.served.pair.rounds.open("")
            record.rounds = self._spent

    def remove_moved(self, record: SessionRecord) -> None:
        """Remove a session that another process owns from memory."""
        self.loaded.remove(record)
        self.served.release(record.rounds)


class _Writer:
    """The `TurnWriter` of one turn."""

    def __init__(self, starter: TurnStarter, record: SessionRecord, turn: TurnRecord, *, writes_ahead: bool) -> None:
        is_written = record.stored.row is not None
        self.hands_over = starter.persistence.is_durable and is_written
        self.writes_ahead = writes_ahead and is_written
        self._starter = starter
        self._persistence = starter.persistence
        self._record = record
        self._turn = turn

    async def write_ahead(self, tokens: Sequence[int]) -> None:
        """Write tokens that readers are about to get; wait for as long as the store cannot."""
        while True:
            try:
                await self._persistence.write_ahead(self._record.stored, self._turn, tokens)
                return
            except StoreUnavailableError as error:
                log.error("turn %d of session %s waits: %s", self._turn.turn, self._record.session.id, error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def write_end(self, ended: TurnEnded) -> bool:
        """Write how the turn ended, later if the store cannot now. Returns False if another process
        owns the session."""
        record, turn = self._record, self._turn
        self._starter.loaded.touch(record)
        try:
            await self._write_end(ended)
        except StoreUnavailableError as error:
            log.error("the end of turn %d of session %s is written later: %s", turn.turn, record.session.id, error)
        except SessionMovedError as error:
            self._starter.remove_moved(record)
            if not record.stored.is_deleted:  # the owner runs the turn, and tells how it ends
                log.warning("turn %d: %s", turn.turn, error)
                record.running = None
                return False
        self._starter.note_end(record, turn, ended)
        return True

    async def _write_end(self, ended: TurnEnded) -> None:
        stored, turn = self._record.stored, self._turn
        if stored.row is None:
            return
        forgotten = ended.error is not None and not ended.generated_token_count
        if turn.size < _LARGE:
            end = end_row(turn, ended, forgotten=forgotten)
        else:
            end = await asyncio.to_thread(end_row, turn, ended, forgotten=forgotten)
        await self._persistence.end_turn(stored, self._record.session, turn.turn, end)

    async def hand_over(self, *, moved: bool) -> None:
        """Leave the turn to another process, with all tokens written that this one has."""
        record = self._record
        try:
            if not moved:
                await self._persistence.write_progress([(record.stored, self._turn)])
        except StoreUnavailableError as error:
            log.error("turn %d stays where it was last written: %s", self._turn.turn, error)
        record.running = None
        if moved:
            self._starter.remove_moved(record)
