"""Begins turns: a message's, a generation's, and those that another process has left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from opentelemetry.context import Context

from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.admission.admission import Admission, AdmissionPermit, Demand, releasing_unused
from orchestrator.sessions.admission.principal import Principal
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.session import common_prefix_length
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.payloads import TurnPayload, resumable, target_of, tokens_of
from orchestrator.sessions.durability.persistence import Persistence, TurnPersistence
from orchestrator.sessions.durability.takeover import TakenOver
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn import Ending, Turn
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord, TurnStarted
from orchestrator.sessions.turns.watcher import TurnBegun, Watcher
from orchestrator.store.rows import StoredTurn
from slipstream.telemetry.tracing import context_of, traceparent_of

log = logging.getLogger(__name__)


class Beginning:
    """What it begins, the tasks own."""

    def __init__(
        self,
        loaded: LoadedSessions,
        persistence: Persistence,
        eviction: Eviction,
        admission: Admission,
        tasks: TurnTasks,
        watcher: Watcher,
        pair: Callable[[], Pair],
    ) -> None:
        self._loaded = loaded
        self._persistence = persistence
        self._eviction = eviction
        self._admission = admission
        self._tasks = tasks
        self._watcher = watcher
        self._pair = pair
        self._spent: SessionRounds | None = None
        """In permit of an ended generation's: there are thousands, and theirs are large."""

    async def begin(
        self,
        record: SessionRecord,
        prompt: list[int],
        resolved: ResolvedTurn,
        name: RequestName,
        parent: Context,
        content: str,
        permit: AdmissionPermit,
    ) -> TurnRecord:
        """Write a message's turn down and run it. SessionMovedError, StoreUnavailableError: then it
        has not begun."""
        self._loaded.touch(record)
        payload = TurnPayload(content, resolved, traceparent_of(parent))
        await self._persistence.begin_turn(record, target_of(self._pair().target), prompt, payload, name)
        return self.run(record, prompt, resolved, name.id, parent, permit, content=content)

    def run(
        self,
        record: SessionRecord,
        prompt: list[int],
        resolved: ResolvedTurn,
        request_id: str,
        parent: Context,
        permit: AdmissionPermit,
        *,
        content: str | None,
        after: TurnRecord | None = None,
        said: Sequence[int] = (),
    ) -> TurnRecord:
        """Run a turn that is written down, of which these tokens have been ``said`` already. One
        that begins ``after`` another has prefilled the same prompt finds its pages in the prefix
        cache."""
        pair, session = self._pair(), record.session
        shared = common_prefix_length(session.tokens, prompt)
        lost = len(session.tokens) - shared
        rule = resolved.terms.rule
        answer = session.begin_turn(list(prompt), rule, resolved.limits, content)
        pair.rounds.begin_turn(record.rounds, shared, recompute=resolved.wants_prompt_logprobs)
        started = TurnStarted(session.id, request_id, rule.seed, len(prompt))
        turn_record = TurnRecord(session.turn_count, started, tells_origins=resolved.tells_origins)
        if said:
            turn_record.add(answer.commit(said), ())
        record.noted_count = turn_record.token_count
        shown = content if content is not None else session.codec.decode(prompt) if self._watcher.shows_text else None
        watch = self._watcher.begin_turn(
            TurnBegun(
                pair.target.name,
                session.id,
                record.principal,
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
            principal=record.principal,
            watch=watch,
            after=after,
            writer=self._turn_writer(record, turn_record, writes_ahead=rule.draws_ratios),
            permit=permit,
        )
        record.running, record.traced = turn, watch.trace_context
        self._tasks.begin(turn, lambda: permit.release(turn_record.token_count))
        permit.is_in_use = True
        record.turns.add(turn_record)
        return turn_record

    def resume_taken_over(self, taken_over: Sequence[TakenOver]) -> None:
        """Keep sessions that were nobody's, and go on with the turns that nobody has finished."""
        first: TurnRecord | None = None
        for each in taken_over:
            record = each.record
            self._loaded.add(record)
            if each.unfinished is not None and each.begun is not None:
                log.info("going on with turn %d of session %s", each.unfinished.begun.turn, record.session.id)
                turn = self._go_on(record, each.unfinished, each.begun, first)
                first = first or turn
        self._eviction.evict_longest_idle()

    def _go_on(
        self, record: SessionRecord, stored: StoredTurn, begun: TurnPayload, after: TurnRecord | None
    ) -> TurnRecord:
        pair, session = self._pair(), record.session
        session.turn_count = stored.begun.turn - 1
        prompt = session.prompt_of(stored.begun.shared_count, tokens_of(stored.begun.prompt))
        resolved = resumable(begun.resolved, pair.limits, draft_fits=pair.mismatch is None)
        whose = Principal(record.principal)  # its limits are not known here, and it had its permit
        permit = self._admission.admit_taken_over(Demand(whose, len(prompt), len(prompt), resolved.room(len(prompt))))
        with releasing_unused([permit]):
            turn = self.run(
                record,
                prompt,
                resolved,
                stored.begun.request_id,
                context_of(begun.traceparent),
                permit,
                content=begun.content,
                after=after,
                said=tokens_of(stored.tokens),
            )
        if stored.tokens and not resolved.tells_tokens_only and record.running is not None:
            record.running.end(Ending.CUT)  # what was told beside those tokens is nowhere
        return turn

    def _turn_writer(self, record: SessionRecord, turn: TurnRecord, *, writes_ahead: bool) -> TurnPersistence:
        return TurnPersistence(
            self._persistence,
            record,
            turn,
            writes_ahead=writes_ahead,
            touch=self._loaded.touch,
            on_ended=lambda ended: self._ended(record, turn, ended),
            on_moved=lambda: self._eviction.remove_idle_session(record),
        )

    def _ended(self, record: SessionRecord, turn: TurnRecord, ended: TurnEnded) -> None:
        record.running = None
        if ended.error is not None and not ended.generated_token_count:  # undone: the same request may try again
            record.requests.forget(turn.started.request_id)
        record.turns.trim()
        if not record.listed:  # what is left to keep is the turn's record
            self._eviction.release_rounds(record)
            record.session.forget()
            if self._spent is None:
                self._spent = self._pair().rounds.open("")
            record.rounds = self._spent
