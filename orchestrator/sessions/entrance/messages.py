"""Messages: each starts a turn, once, when its session is free and it has an admission permit."""

from __future__ import annotations

from opentelemetry.context import Context

from orchestrator.errors import SessionBusyError, SessionMovedError
from orchestrator.rounds.terms import Prediction
from orchestrator.sessions.admission.admission import Admission
from orchestrator.sessions.admission.demand import AdmissionPermit, AdmissionWait, Demand, releasing_unused
from orchestrator.sessions.conversation.next_prompt import NextPrompt, next_prompt
from orchestrator.sessions.conversation.session import common_prefix_length
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.durability.eviction import Eviction
from orchestrator.sessions.durability.loaded import LoadedSessions, SessionRecord, session_not_found
from orchestrator.sessions.durability.payloads import TurnPayload, next_turn_row, target_of
from orchestrator.sessions.durability.persistence import Persistence
from orchestrator.sessions.entrance.requests import UserMessage
from orchestrator.sessions.entrance.starting import TurnStarter
from orchestrator.sessions.turns.pair import ServedPair
from orchestrator.sessions.turns.predictions import prediction_of
from orchestrator.sessions.turns.tasks import TurnTasks
from orchestrator.sessions.turns.turn_record import TurnRecord
from orchestrator.store.rows import Counts
from slipstream.telemetry.tracing import traceparent_of


class Messages:
    """Starts the turns of messages."""

    def __init__(
        self,
        loaded: LoadedSessions,
        persistence: Persistence,
        eviction: Eviction,
        admission: Admission,
        tasks: TurnTasks,
        starter: TurnStarter,
        served: ServedPair,
    ) -> None:
        self._loaded = loaded
        self._persistence = persistence
        self._eviction = eviction
        self._admission = admission
        self._tasks = tasks
        self._starter = starter
        self._served = served

    async def send(
        self,
        record: SessionRecord,
        message: UserMessage,
        stream_settings: GenerationSettings,
        parent: Context,
        wait: AdmissionWait,
    ) -> TurnRecord:
        """Start a message's turn, or return the one that it has started before; see
        `Sessions.send`."""
        if message.caller.name != record.stored.principal:  # a chat may have got another caller's token
            raise session_not_found(record.session.id)
        await self._eviction.check_ownership(record)
        known = _known_turn(record, message)
        if known is not None:
            return known
        self._tasks.refuse_while_draining()
        pair, session = self._served.pair, record.session
        settings = message.settings.over(stream_settings).over(record.stored.settings)
        _refuse_if_busy(record, session.turn_count)
        following = next_prompt(session, message.said)
        prompt = await pair.encode(following, session.clock)
        await pair.check_structure(settings, message.caller)
        resolved = pair.resolve_settings(settings, len(prompt), acceptance=session.acceptance)
        prediction = await prediction_of(pair, message.prediction, resolved.terms.rule, message.caller)
        room = resolved.room(len(prompt))
        fresh = len(prompt) - common_prefix_length(session.tokens, prompt)
        permits = await self._admission.acquire(Demand(message.caller, len(prompt), fresh, room), wait)

        async def begin() -> TurnRecord:
            with releasing_unused(permits):
                async with record.beginning:
                    return await self._begin(
                        record, message, settings, following, prompt, prediction, parent, permits[0]
                    )

        return await self._tasks.run_to_completion(begin())

    async def _begin(
        self,
        record: SessionRecord,
        message: UserMessage,
        settings: GenerationSettings,
        following: NextPrompt,
        prompt: list[int],
        prediction: Prediction | None,
        parent: Context,
        permit: AdmissionPermit,
    ) -> TurnRecord:
        """Write the turn and start it, unless the session has changed since the prompt was made."""
        known = _known_turn(record, message)
        if known is not None:
            return known
        self._tasks.refuse_while_draining()
        session = record.session
        if self._loaded.find(session.id) is not record:  # a caller that looks for it again learns why
            what = f"session {session.id} was deleted, evicted, or owned by another process for a while"
            raise SessionMovedError(what, session_id=session.id)
        _refuse_if_busy(record, following.turn_count)
        resolved = self._served.pair.resolve_settings(settings, len(prompt), acceptance=session.acceptance)
        self._loaded.touch(record)
        created = self._loaded.now().timestamp()
        payload = TurnPayload.of(message.said, resolved, traceparent_of(parent), settings, message.note, created)
        try:
            await self._write_turn(record, message, prompt, payload)
        except SessionMovedError:
            await self._eviction.evict_moved_session(record)
            raise
        turn = self._starter.start_turn(
            record,
            prompt,
            resolved.predicting(prediction),
            message.name.id,
            parent,
            permit,
            said=message.said,
            rendered=following.rendered,
        )
        record.requests.remember(message.name, turn.turn)
        return turn

    async def _write_turn(
        self, record: SessionRecord, message: UserMessage, prompt: list[int], payload: TurnPayload
    ) -> None:
        """Write a turn that is about to begin. SessionMovedError, StoreUnavailableError: then it
        must not."""
        stored, session = record.stored, record.session
        if stored.row is None:
            return
        turn = next_turn_row(session, prompt, payload, message.name)
        row = stored.row_for(target_of(self._served.pair.target))
        counts = Counts(
            round(stored.last_active * 1e6), turn.turn, len(prompt), len(session.messages) + len(message.said)
        )
        await self._persistence.begin_turn(stored, session, row, turn, counts)


def _known_turn(record: SessionRecord, message: UserMessage) -> TurnRecord | None:
    turn = record.requests.find(message.name)
    return None if turn is None else record.turns.get(turn)


def _refuse_if_busy(record: SessionRecord, turn_count: int) -> None:
    """Raise SessionBusyError if a turn runs, or has begun since the session had ``turn_count``."""
    session = record.session
    if record.running is not None or session.turn_count != turn_count:
        turn = session.turn_count
        raise SessionBusyError(f"session {session.id} has turn {turn} running, or had it just now", turn=turn)
