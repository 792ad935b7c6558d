"""Generations: several answers to one prompt, each of which is a session with one turn."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from opentelemetry.context import Context

from orchestrator.rounds.terms import Prediction
from orchestrator.sessions.admission.admission import Admission
from orchestrator.sessions.admission.demand import AdmissionPermit, AdmissionWait, Demand, releasing_unused
from orchestrator.sessions.conversation.choices import resolved_choice
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord
from orchestrator.sessions.durability.payloads import TurnPayload, new_session_row, next_turn_row, target_of
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.durability.stored_session import StoredSession
from orchestrator.sessions.entrance.requests import Generation
from orchestrator.sessions.entrance.starting import TurnStarter
from orchestrator.sessions.turns.pair import Pair, ServedPair
from orchestrator.sessions.turns.predictions import prediction_of
from orchestrator.sessions.turns.request_names import RequestName, check_request_id
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn_record import Ending, TurnRecord
from orchestrator.store.ownership import Ownership
from orchestrator.store.rows import SessionRow
from orchestrator.store.store import Store
from slipstream.telemetry.tracing import traceparent_of


class Generations:
    """Starts the turns of generations, and drops those that no caller can ask for again."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        loaded: LoadedSessions,
        persistence: Persistence,
        eviction: Eviction,
        admission: Admission,
        tasks: TurnTasks,
        starter: TurnStarter,
        served: ServedPair,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._loaded = loaded
        self._persistence = persistence
        self._eviction = eviction
        self._admission = admission
        self._tasks = tasks
        self._starter = starter
        self._served = served

    async def generate(self, generation: Generation, parent: Context, wait: AdmissionWait) -> list[TurnRecord]:
        """Start a turn for each answer, or return those that this request has started before; see
        `Sessions.generate`."""
        name = generation.name
        check_request_id(name.id)
        known = await self._known_turns(generation)
        if known is not None:
            return known
        self._tasks.refuse_while_draining()
        pair, settings = self._served.pair, generation.settings
        clock = generation.clock or self._loaded.now()
        prompt = await pair.encode(generation.prompt, clock)
        await pair.check_structure(settings, generation.caller)
        self._tasks.refuse_while_draining()
        resolved = pair.resolve_settings(settings, len(prompt))
        prediction = await prediction_of(pair, generation.prediction, resolved.terms.rule, generation.caller)
        room = resolved.room(len(prompt))
        demand = Demand(generation.caller, len(prompt), len(prompt), room, generation.choice_count)
        permits = await self._admission.acquire(demand, wait)
        begun: list[TurnRecord] = []
        has_left = False

        async def begin() -> list[TurnRecord]:
            with releasing_unused(permits):
                begun.extend(
                    await self._begin_choices(generation, clock, prompt, resolved, parent, permits, prediction)
                )
            if has_left and not name.id:
                self.abandon(begun)
            return begun

        try:
            return await self._tasks.run_to_completion(begin())
        except asyncio.CancelledError:
            has_left = True
            if not name.id:  # no caller could ask for it again, or cancel it
                self.abandon(begun)
            raise

    def abandon(self, turns: Sequence[TurnRecord]) -> None:
        """Cancel and drop generations that no caller can ask for again."""
        for turn in turns:
            record = self._loaded.find(turn.started.session_id)
            if record is not None:
                self._loaded.remove(record)
                if record.running is not None:
                    self._tasks.request_cancel(record.running, Ending.CANCELLED)  # its end releases its pages

    async def _begin_choices(
        self,
        generation: Generation,
        clock: datetime,
        prompt: list[int],
        resolved: ResolvedTurn,
        parent: Context,
        permits: Sequence[AdmissionPermit],
        prediction: Prediction | None,
    ) -> list[TurnRecord]:
        """Write a generation's turns and start them. Returns the turns of the same request if they
        have begun meanwhile."""
        self._tasks.refuse_while_draining()
        count, name = generation.choice_count, generation.name
        for old in self._loaded.remove_ended_generations(count):
            await self._eviction.delete_session(old)
        pair, now = self._served.pair, self._loaded.now().timestamp()
        records = [self._record_of_choice(generation, pair, clock, now, index) for index in range(count)]
        choices = [resolved_choice(resolved, index) for index in range(count)]
        payloads = [TurnPayload.of((), choice, traceparent_of(parent)) for choice in choices]
        rows = await self._write_choices(records, prompt, payloads, name)
        if rows and rows[0].id != records[0].session.id:
            return [record.turns.get(1) for record in await self._eviction.loaded_of_request(name, rows)]
        turns: list[TurnRecord] = []
        for record, choice, permit in zip(records, choices, permits, strict=True):
            self._loaded.add(record)
            after, predicting = turns[0] if turns else None, choice.predicting(prediction)
            turns.append(
                self._starter.start_turn(record, prompt, predicting, name.id, parent, permit, said=(), after=after)
            )
        return turns

    async def _write_choices(
        self, records: Sequence[SessionRecord], prompt: list[int], payloads: Sequence[TurnPayload], name: RequestName
    ) -> list[SessionRow]:
        """Write sessions that have a row, each with its turn; return them, or those that the
        request has created before."""
        rows, turns = [], []
        for record, payload in zip(records, payloads, strict=True):
            stored = record.stored
            if stored.row is not None:
                row = stored.row_for(target_of(self._served.pair.target))
                stored.row = replace(row, turn_count=1, token_count=len(prompt), running_turn=1)
                rows.append(stored.row)
                turns.append(next_turn_row(record.session, prompt, payload, name))
        return await self._persistence.create_generation(rows, turns)

    def _record_of_choice(
        self, generation: Generation, pair: Pair, clock: datetime, now: float, index: int
    ) -> SessionRecord:
        """Return the session that one of a generation's turns runs in."""
        name, settings, caller = generation.name, generation.settings, generation.caller
        session_id = secrets.token_hex(8) if name.id else self._ownership.mark + secrets.token_hex(6)
        session = Session(session_id, pair.codec, clock)
        row = None
        if name.id:
            owner_id = self._ownership.me.id
            row = new_session_row(
                session, owner_id, name, settings, now, principal=caller.name, choice=index, listed=False
            )
        stored = StoredSession(row, settings, now, now, listed=False, principal=caller.name)
        return SessionRecord(session, stored, pair.rounds.open(session_id))

    async def _known_turns(self, generation: Generation) -> list[TurnRecord] | None:
        """Return the turns that the request has started before.

        None if it has started none, if all were undone, or if some are lost: then it generates
        again.
        """
        name, principal = generation.name, generation.caller.name
        rows = await self._store.sessions_of_request(principal, name.id, listed=False) if name.id else []
        records = await self._eviction.loaded_of_request(name, rows)
        turns = [record.turns.get(1) for record in records]
        undone = all(turn.ended is not None and turn.ended.error and not turn.token_count for turn in turns)
        if turns and (undone or len(turns) < generation.choice_count):
            await self._store.forget_request(principal, name.id)
            for record in records:
                await self._eviction.evict_session(record, Ending.CANCELLED)
            return None
        return turns or None
