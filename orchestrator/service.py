"""OrchestratorService on the wire: requests to commands, events to responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

import grpc
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.timestamp_pb2 import Timestamp

from orchestrator.peers.services import ModelInfo
from orchestrator.processes.pair import ServedPair
from orchestrator.sessions.chat import (
    BadCommand,
    CancelTurn,
    ChatEvent,
    ChatStream,
    Command,
    CommandFailed,
    SessionOpened,
    StartChat,
    UserMessage,
)
from orchestrator.sessions.choices import MAX_CHOICES, run_choices
from orchestrator.sessions.session import FinishReason
from orchestrator.sessions.settings import ADAPTIVE, GenerationSettings
from orchestrator.sessions.store import SessionRecord
from orchestrator.sessions.text import Message
from orchestrator.sessions.turns import TurnDelta, TurnEvent, TurnFinished, TurnStarted, TurnStatistics
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.proposal import Source
from slipstream.errors import FieldViolation, InvalidFieldsError, SlipstreamError
from slipstream.rpc.sampling_wire import (
    acceptance_of,
    defaults_message,
    logit_bias_of,
    logprobs_message,
    structure_of,
)
from slipstream.rpc.status import abort, status_of
from slipstream.rpc.wire import duration
from slipstream.sampling.outcome import LogprobRequest
from slipstream.telemetry.tracing import context_of_metadata
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from slipstream.version import VERSION

Context = grpc.aio.ServicerContext[Any, Any]

_ROLES = ("system", "user", "assistant")
_DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE = 100, 1000
_FINISH_REASONS = {
    FinishReason.END_TOKEN: orchestrator_pb2.FINISH_REASON_END_TOKEN,
    FinishReason.STOP_TOKEN: orchestrator_pb2.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: orchestrator_pb2.FINISH_REASON_STOP_STRING,
    FinishReason.MAX_TOKENS: orchestrator_pb2.FINISH_REASON_MAX_TOKENS,
    FinishReason.CONTEXT_LENGTH: orchestrator_pb2.FINISH_REASON_CONTEXT_LENGTH,
    FinishReason.CANCELLED: orchestrator_pb2.FINISH_REASON_CANCELLED,
}

_OVERLAPS = {
    orchestrator_pb2.Speculation.OVERLAP_NONE: Overlap.NONE,
    orchestrator_pb2.Speculation.OVERLAP_ENUMERATE: Overlap.ENUMERATE,
    orchestrator_pb2.Speculation.OVERLAP_RUN_AHEAD: Overlap.RUN_AHEAD,
}
_PROPOSERS = {
    orchestrator_pb2.Speculation.PROPOSER_DRAFT: Source.DRAFT,
    orchestrator_pb2.Speculation.PROPOSER_NGRAM: Source.NGRAM,
}


class OrchestratorService(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """What clients talk to."""

    def __init__(self, pair: ServedPair) -> None:
        self._pair = pair

    async def Generate(
        self, request: orchestrator_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.GenerateResponse]:
        try:
            async with aclosing(self._generate(request, context)) as events:
                async for index, event in events:
                    started, delta, finished = _turn_event(event)
                    yield orchestrator_pb2.GenerateResponse(
                        started=started, delta=delta, finished=finished, choice_index=index
                    )
        except Exception as error:
            await abort(context, error)

    async def _generate(
        self, request: orchestrator_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[tuple[int, TurnEvent]]:
        count = request.choice_count or 1
        if not 1 <= count <= MAX_CHOICES:
            what = f"must be from 0 to {MAX_CHOICES}, but is {count}"
            raise InvalidFieldsError([FieldViolation("choice_count", what)])
        prompt = self._prompt(request)
        settings = _settings(request.settings)
        await self._pair.check_structure(settings)
        resolved = self._pair.resolve(settings, len(prompt))
        parent = context_of_metadata(context.invocation_metadata())
        async with aclosing(run_choices(self._pair, prompt, resolved, count, parent)) as events:
            async for event in events:
                yield event

    def _prompt(self, request: orchestrator_pb2.GenerateRequest) -> list[int]:
        codec = self._pair.codec
        kind = request.WhichOneof("prompt")
        if kind == "text" and request.text:
            return codec.encode_text(request.text)
        if kind == "tokens" and request.tokens.token_ids:
            size = self._pair.target.vocabulary_size
            if not all(0 <= token < size for token in request.tokens.token_ids):
                raise InvalidFieldsError([FieldViolation("tokens.token_ids", f"must be from 0 to {size - 1}")])
            return list(request.tokens.token_ids)
        if kind == "conversation" and request.conversation.messages:
            messages = [Message(m.role, m.content) for m in request.conversation.messages]
            _check_messages(messages)
            return codec.encode_rendered(codec.render(messages, add_generation_prompt=True))
        field = kind or "prompt"
        raise InvalidFieldsError([FieldViolation(field, "must not be empty: set text, conversation or tokens")])

    async def Chat(
        self, request_iterator: AsyncIterator[orchestrator_pb2.ChatRequest], context: Context
    ) -> AsyncIterator[orchestrator_pb2.ChatResponse]:
        stream = ChatStream(self._pair, context_of_metadata(context.invocation_metadata()))
        async with aclosing(stream.run(_commands(request_iterator))) as events:
            async for event in events:
                yield self._chat_response(event)

    def _chat_response(self, event: ChatEvent) -> orchestrator_pb2.ChatResponse:
        if isinstance(event, SessionOpened):
            opened = orchestrator_pb2.SessionOpened(session=self._session(event.record))
            return orchestrator_pb2.ChatResponse(opened=opened)
        if isinstance(event, CommandFailed):
            failed = orchestrator_pb2.CommandFailed(error=status_of(event.error))
            return orchestrator_pb2.ChatResponse(failed=failed)
        started, delta, finished = _turn_event(event)
        return orchestrator_pb2.ChatResponse(started=started, delta=delta, finished=finished)

    async def GetSession(
        self, request: orchestrator_pb2.GetSessionRequest, context: Context
    ) -> orchestrator_pb2.GetSessionResponse:
        try:
            record = self._pair.store.get(request.session_id)
        except SlipstreamError as error:
            await abort(context, error)
        messages = [orchestrator_pb2.Message(role=m.role, content=m.content) for m in record.session.messages]
        return orchestrator_pb2.GetSessionResponse(session=self._session(record), messages=messages)

    async def ListSessions(
        self, request: orchestrator_pb2.ListSessionsRequest, context: Context
    ) -> orchestrator_pb2.ListSessionsResponse:
        records = self._pair.store.recent_first()
        try:
            page, token = page_of([record.session.id for record in records], request)
        except SlipstreamError as error:
            await abort(context, error)
        sessions = [self._session(record) for record in records[page]]
        return orchestrator_pb2.ListSessionsResponse(sessions=sessions, next_page_token=token)

    async def DeleteSession(
        self, request: orchestrator_pb2.DeleteSessionRequest, context: Context
    ) -> orchestrator_pb2.DeleteSessionResponse:
        try:
            self._pair.delete_session(request.session_id)
        except SlipstreamError as error:
            await abort(context, error)
        return orchestrator_pb2.DeleteSessionResponse()

    async def GetServerInfo(
        self, request: orchestrator_pb2.GetServerInfoRequest, context: Context
    ) -> orchestrator_pb2.GetServerInfoResponse:
        try:
            limits, target = self._pair.limits, self._pair.target
        except SlipstreamError as error:
            await abort(context, error)
        draft = self._pair.draft.info if self._pair.draft is not None else None
        return orchestrator_pb2.GetServerInfoResponse(
            version=VERSION,
            target=_model(target),
            draft=None if draft is None else _model(draft),
            default_draft_length=limits.default_draft_length,
            max_draft_length=limits.max_draft_length,
            default_max_token_count=limits.default_max_token_count,
            verifier_reachable=self._pair.verifiers.reachable,
            draft_reachable=self._pair.draft is not None and self._pair.draft.reachable,
        )

    def _session(self, record: SessionRecord) -> orchestrator_pb2.Session:
        session = record.session
        return orchestrator_pb2.Session(
            id=session.id,
            create_time=_timestamp(record.created),
            last_active_time=_timestamp(record.last_active),
            expire_time=_timestamp(record.last_active + self._pair.store.ttl_seconds),
            turn_count=session.turn_count,
            token_count=len(session.tokens),
            running=session.turn is not None,
            message_count=len(session.messages),
        )


async def _commands(requests: AsyncIterator[orchestrator_pb2.ChatRequest]) -> AsyncIterator[Command]:
    async for request in requests:
        try:
            yield _command(request)
        except SlipstreamError as error:
            yield BadCommand(error)


def _command(request: orchestrator_pb2.ChatRequest) -> Command:
    kind = request.WhichOneof("command")
    if kind == "start":
        start = request.start
        return StartChat(_given(start, "session_id"), _given(start, "system"), _settings(start.settings))
    if kind == "message":
        return UserMessage(request.message.content, _settings(request.message.settings))
    if kind == "cancel":
        return CancelTurn()
    raise InvalidFieldsError([FieldViolation("command", "must be set: start, message or cancel")])


def _settings(message: orchestrator_pb2.GenerationSettings) -> GenerationSettings:
    sampling = message.sampling
    return GenerationSettings(
        temperature=_given(sampling, "temperature"),
        top_k=_given(sampling, "top_k"),
        top_p=_given(sampling, "top_p"),
        min_p=_given(sampling, "min_p"),
        typical_p=_given(sampling, "typical_p"),
        repetition_penalty=_given(sampling, "repetition_penalty"),
        presence_penalty=_given(sampling, "presence_penalty"),
        frequency_penalty=_given(sampling, "frequency_penalty"),
        logit_bias=logit_bias_of(sampling.logit_bias) or None,
        allowed_token_ids=tuple(sampling.allowed_token_ids) or None,
        banned_token_ids=tuple(sampling.banned_token_ids) or None,
        seed=_given(sampling, "seed"),
        max_token_count=_given(message, "max_token_count"),
        min_token_count=_given(message, "min_token_count"),
        stop_strings=tuple(message.stop_strings) or None,
        stop_token_ids=tuple(message.stop_token_ids) or None,
        ignore_end_tokens=_given(message, "ignore_end_tokens"),
        include_stop_in_text=_given(message, "include_stop_in_text"),
        logprobs=LogprobRequest(message.logprobs.top_count, message.logprobs.prompt)
        if message.HasField("logprobs")
        else None,
        structure=structure_of(message.structure, "settings.structure") if message.HasField("structure") else None,
        acceptance=acceptance_of(message.acceptance, "settings.acceptance"),
        proposal_top_k=_given(message, "proposal_top_k"),
        draft_length=_draft_length(message.speculation),
        overlap=_OVERLAPS.get(message.speculation.overlap),
        proposer=_PROPOSERS.get(message.speculation.proposer),
    )


def _given(message: ProtoMessage, field: str) -> Any:
    """A field's value, None if the client left it open."""
    return getattr(message, field) if message.HasField(field) else None


def _draft_length(speculation: orchestrator_pb2.Speculation) -> int | Literal["adaptive"] | None:
    """0 for off, -1 for a fixed length that is not one (refused later, by its field's name), None for the default."""
    modes = orchestrator_pb2.Speculation
    if speculation.mode == modes.MODE_OFF:
        return 0
    if speculation.mode == modes.MODE_ADAPTIVE:
        return ADAPTIVE
    if speculation.mode == modes.MODE_FIXED and speculation.HasField("draft_length"):
        return speculation.draft_length or -1
    return None


def _check_messages(messages: list[Message]) -> None:
    violations = []
    for index, message in enumerate(messages):
        if message.role not in _ROLES:
            what = f"must be one of {', '.join(_ROLES)}, but is {message.role!r}"
            violations.append(FieldViolation(f"conversation.messages[{index}].role", what))
        if not message.content:
            violations.append(FieldViolation(f"conversation.messages[{index}].content", "must not be empty"))
    if messages[-1].role != "user":
        last = f"conversation.messages[{len(messages) - 1}].role"
        violations.append(FieldViolation(last, f"must be 'user' in the last message, but is {messages[-1].role!r}"))
    if violations:
        raise InvalidFieldsError(violations)


def page_of(ids: Sequence[str], request: orchestrator_pb2.ListSessionsRequest) -> tuple[slice, str]:
    """Which of the sessions with these ids a request asks for, and the next page's token. InvalidFieldsError."""
    size = request.page_size or _DEFAULT_PAGE_SIZE
    if not 1 <= size <= _MAX_PAGE_SIZE:
        raise InvalidFieldsError([FieldViolation("page_size", f"must be from 0 to {_MAX_PAGE_SIZE}, but is {size}")])
    start = 0
    if request.page_token:
        if request.page_token not in ids:
            what = "must come from the previous response; list again"
            raise InvalidFieldsError([FieldViolation("page_token", what)])
        start = ids.index(request.page_token) + 1
    end = start + size
    return slice(start, end), ids[end - 1] if end < len(ids) else ""


def _turn_event(
    event: TurnEvent,
) -> tuple[
    orchestrator_pb2.TurnStarted | None, orchestrator_pb2.TurnDelta | None, orchestrator_pb2.TurnFinished | None
]:
    if isinstance(event, TurnStarted):
        started = orchestrator_pb2.TurnStarted(
            turn=event.turn, seed=event.seed, prompt_token_count=event.prompt_token_count
        )
        return started, None, None
    if isinstance(event, TurnDelta):
        delta = orchestrator_pb2.TurnDelta(
            text=event.text,
            token_ids=event.token_ids,
            logprobs=map(logprobs_message, event.logprobs),
            prompt_logprobs=map(logprobs_message, event.prompt_logprobs),
        )
        return None, delta, None
    return None, None, _finished(event)


def _finished(event: TurnFinished) -> orchestrator_pb2.TurnFinished:
    usage = orchestrator_pb2.Usage(
        prompt_token_count=event.prompt_token_count,
        cached_token_count=event.cached_token_count,
        generated_token_count=event.generated_token_count,
    )
    return orchestrator_pb2.TurnFinished(
        finish_reason=_FINISH_REASONS[event.finish_reason],
        usage=usage,
        speculation=_speculation(event.statistics),
        timing=_timing(event.statistics),
    )


def _speculation(statistics: TurnStatistics) -> orchestrator_pb2.SpeculationStatistics:
    return orchestrator_pb2.SpeculationStatistics(
        round_count=statistics.round_count,
        draft_count=statistics.draft_count,
        draft_token_count=statistics.draft_token_count,
        accepted_token_count=statistics.accepted_token_count,
        accepted_per_position_counts=statistics.accepted_per_position,
        drafted_per_position_counts=statistics.drafted_per_position,
        draft_failure_count=statistics.draft_failure_count,
        synchronous_round_count=statistics.round_counts[Overlap.NONE],
        enumerated_round_count=statistics.round_counts[Overlap.ENUMERATE],
        run_ahead_round_count=statistics.round_counts[Overlap.RUN_AHEAD],
        hit_count=statistics.hit_count,
        miss_count=statistics.miss_count,
        ngram_token_count=statistics.ngram_token_count,
        ngram_accepted_token_count=statistics.ngram_accepted_token_count,
        switched_off_count=statistics.switched_off_count,
    )


def _timing(statistics: TurnStatistics) -> orchestrator_pb2.TurnTiming:
    return orchestrator_pb2.TurnTiming(
        total=duration(statistics.total),
        time_to_first_token=duration(statistics.time_to_first_token),
        draft=duration(statistics.draft),
        verify=duration(statistics.verify),
        queue=duration(statistics.queue),
        network=duration(statistics.network),
        orchestrator=duration(statistics.orchestrator),
        draft_hidden=duration(statistics.draft_hidden),
    )


def _timestamp(seconds: float) -> Timestamp:
    message = Timestamp()
    message.FromMicroseconds(int(seconds * 1e6))
    return message


def _model(info: ModelInfo) -> orchestrator_pb2.ModelInfo:
    return orchestrator_pb2.ModelInfo(
        name=info.name,
        architecture=info.architecture,
        vocabulary_size=info.vocabulary_size,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        context_length=info.context_length,
        end_token_ids=info.end_token_ids,
        sampling_defaults=defaults_message(info.sampling_defaults),
        dtype=info.dtype,
        device=info.device,
        max_draft_length=info.max_draft_length,
        weights_fingerprint=info.weights_fingerprint,
    )
