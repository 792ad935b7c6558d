"""Conversions of events, sessions and models into messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.contract.fields import timestamp
from orchestrator.contract.messages import message_message, options_message
from orchestrator.contract.settings import settings_message
from orchestrator.contract.traces import PROPOSERS
from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.result import Origin
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.turn_limits import FinishReason
from orchestrator.sessions.durability.loaded import SessionSummary
from orchestrator.sessions.durability.payloads import AskedTurn, ToldTurn, content_of
from orchestrator.sessions.entrance.chat_commands import ChatEvent, CommandFailed, SessionOpened, TurnHappened
from orchestrator.sessions.entrance.sessions import Sessions
from orchestrator.sessions.turns.pair import Pair
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnDelta, TurnEnded, TurnEvent, TurnStarted
from slipstream.errors import SlipstreamError
from slipstream.rpc.sampling_wire import defaults_message, logprobs_message
from slipstream.rpc.status import status_of
from slipstream.rpc.wire import duration
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.v1 import orchestrator_pb2, sampling_pb2, session_pb2, turn_pb2

_FINISH_REASONS = {reason: turn_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}
_ORIGINS = {origin: turn_pb2.TokenOrigin.Value(f"TOKEN_ORIGIN_{origin.name}") for origin in Origin}
_MOST_PAGE_BYTES = 3_500_000
"""Most bytes of a page of sessions, less the few that frame them. Many clients take messages of at
most 4 MiB."""


def turn_event(turn: int, event: TurnEvent, pair: Pair) -> turn_pb2.TurnEvent:
    """Convert an event of a turn of the ``pair``."""
    if isinstance(event, TurnStarted):
        started = turn_pb2.TurnStarted(
            session_id=event.session_id,
            request_id=event.request_id,
            seed=event.seed,
            prompt_token_count=event.prompt_token_count,
        )
        return turn_pb2.TurnEvent(turn=turn, started=started)
    if isinstance(event, TurnDelta):
        converted = partial(_logprobs_with_bytes, pair.codec) if event.tells_token_bytes else logprobs_message
        delta = turn_pb2.TurnDelta(
            text=event.text,
            token_ids=event.token_ids,
            token_offset=event.token_offset,
            token_origins=[_ORIGINS[origin] for origin in event.origins],
            token_text_byte_counts=event.text_byte_counts,
            logprobs=map(converted, event.logprobs),
            prompt_logprobs=map(converted, event.prompt_logprobs),
        )
        return turn_pb2.TurnEvent(turn=turn, delta=delta)
    if event.error is not None:
        return turn_pb2.TurnEvent(turn=turn, failed=_failed(event, event.error, pair.target))
    return turn_pb2.TurnEvent(turn=turn, finished=_finished(event, pair.target))


def chat_response(event: ChatEvent, sessions: Sessions) -> orchestrator_pb2.ChatResponse:
    """Convert an event of a chat."""
    if isinstance(event, TurnHappened):
        return orchestrator_pb2.ChatResponse(turn=turn_event(event.turn, event.event, sessions.pair))
    if isinstance(event, SessionOpened):
        opened = orchestrator_pb2.SessionOpened(session=session_message(event.record.summary, sessions.ttl_seconds))
        return orchestrator_pb2.ChatResponse(opened=opened)
    if isinstance(event, CommandFailed):
        failed = orchestrator_pb2.CommandFailed(request_id=event.request_id, error=status_of(event.error))
        return orchestrator_pb2.ChatResponse(failed=failed)
    return orchestrator_pb2.ChatResponse(closing=orchestrator_pb2.ChatClosing(error=status_of(event.error)))


def chat_closing(error: SlipstreamError) -> orchestrator_pb2.ChatResponse:
    """Return the last response of a chat that ends because of an error."""
    return orchestrator_pb2.ChatResponse(closing=orchestrator_pb2.ChatClosing(error=status_of(error)))


def session_message(session: SessionSummary, ttl_seconds: float) -> session_pb2.Session:
    """Convert a session's summary."""
    return session_pb2.Session(
        id=session.id,
        create_time=timestamp(session.created / 1e6),
        last_active_time=timestamp(session.last_active / 1e6),
        expire_time=timestamp(session.last_active / 1e6 + ttl_seconds),
        turn_count=session.turn_count,
        token_count=session.token_count,
        running_turn=session.running_turn,
        message_count=session.message_count,
        template_time=timestamp(session.clock),
        metadata=session.metadata,
    )


def fitting_sessions(sessions: Sequence[session_pb2.Session]) -> Sequence[session_pb2.Session]:
    """Return the first sessions, as many as fit into a message that clients can receive."""
    room = _MOST_PAGE_BYTES
    for index, session in enumerate(sessions):
        room -= session.ByteSize()
        if room < 0:
            return sessions[: max(1, index)]
    return sessions


def asked_turn(asked: AskedTurn) -> orchestrator_pb2.GetTurnResponse:
    """Convert what a turn was asked."""
    payload = asked.payload
    return orchestrator_pb2.GetTurnResponse(
        turn=asked.turn,
        request_id=asked.request_id,
        system=asked.session.system,
        content=payload.content or "",
        messages=map(message_message, payload.messages),
        settings=None if payload.settings is None else settings_message(payload.settings),
        note=payload.note,
        create_time=None if payload.created is None else timestamp(payload.created),
        running=asked.is_running,
        template_options=options_message(asked.session.options),
    )


def exported_turn(told: ToldTurn) -> orchestrator_pb2.ExportedTurn:
    """Convert a turn for an export."""
    past = told.past
    return orchestrator_pb2.ExportedTurn(
        turn=told.turn,
        request_id=told.request_id,
        content=content_of(past.said) or "",
        text=past.text,
        seed=told.seed,
        shared_token_count=past.shared_count,
        prompt_token_ids=past.prompt,
        token_ids=past.tokens,
        finish_reason=_FINISH_REASONS[told.finish_reason],
        error=None if told.error is None else status_of(told.error),
        messages=map(message_message, [] if content_of(past.said) is not None else past.said),
    )


def model_message(info: ModelInfo) -> orchestrator_pb2.Model:
    """Convert the description of a hosted model."""
    return orchestrator_pb2.Model(
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
        sampling_version=info.sampling_version,
        caveats=info.caveats,
        collect_share=info.collect_share,
        heads=info.heads or "",
    )


def _logprobs_with_bytes(codec: Codec, logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    message = logprobs_message(logprobs)
    message.token_bytes = codec.token_bytes(message.token_id)
    for entry in message.top:
        entry.token_bytes = codec.token_bytes(entry.token_id)
    return message


def _finished(event: TurnEnded, target: ModelInfo) -> turn_pb2.TurnFinished:
    return turn_pb2.TurnFinished(
        finish_reason=_FINISH_REASONS[event.finish_reason],
        usage=_usage(event),
        speculation=_speculation(event.statistics),
        timing=_timing(event.statistics),
        text=event.text,
        stop_string=event.stop_string,
        weights_fingerprint=target.weights_fingerprint,
        sampling_version=target.sampling_version,
    )


def _failed(event: TurnEnded, error: Exception, target: ModelInfo) -> turn_pb2.TurnFailed:
    return turn_pb2.TurnFailed(
        error=status_of(error),
        usage=_usage(event),
        speculation=_speculation(event.statistics),
        timing=_timing(event.statistics),
        text=event.text,
        weights_fingerprint=target.weights_fingerprint,
        sampling_version=target.sampling_version,
    )


def _usage(event: TurnEnded) -> turn_pb2.Usage:
    return turn_pb2.Usage(
        prompt_token_count=event.prompt_token_count,
        cached_token_count=event.cached_token_count,
        generated_token_count=event.generated_token_count,
    )


def _speculation(statistics: TurnStatistics) -> turn_pb2.SpeculationStatistics:
    absent = statistics.absent_source
    return turn_pb2.SpeculationStatistics(
        round_count=statistics.round_count,
        draft_count=statistics.draft_count,
        draft_token_count=statistics.draft_token_count,
        accepted_token_count=statistics.accepted_token_count,
        accepted_per_position_counts=statistics.accepted_per_position,
        drafted_per_position_counts=statistics.drafted_per_position,
        draft_failure_count=statistics.draft_failure_count,
        ngram_token_count=statistics.ngram_token_count,
        ngram_accepted_token_count=statistics.ngram_accepted_token_count,
        prediction_token_count=statistics.prediction_token_count,
        prediction_accepted_token_count=statistics.prediction_accepted_token_count,
        heads_token_count=statistics.heads_token_count,
        heads_accepted_token_count=statistics.heads_accepted_token_count,
        switched_off_count=statistics.switched_off_count,
        speculative_decoding=_speculative_decoding(statistics),
        speculative_token_count=statistics.speculative_token_count,
        absent_proposer=PROPOSERS["plain" if absent is None else absent.value],
    )


def _speculative_decoding(statistics: TurnStatistics) -> turn_pb2.SpeculativeDecoding:
    rounds, drafted, accepted = (
        statistics.draft_count,
        statistics.draft_token_count,
        statistics.accepted_token_count,
    )
    lengths, longest = statistics.accepted_lengths, max(statistics.draft_lengths, default=0)
    return turn_pb2.SpeculativeDecoding(
        mean_acceptance_length=statistics.mean_acceptance_length,
        draft_acceptance_rate=accepted / drafted if drafted else 0,
        acceptance_histogram=[lengths[length] for length in range(longest + 1)] if rounds else [],
        num_spec_steps=rounds,
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=drafted,
        num_spec_tokens=longest,
    )


def _timing(statistics: TurnStatistics) -> turn_pb2.TurnTiming:
    return turn_pb2.TurnTiming(
        total=duration(statistics.total),
        time_to_first_token=duration(statistics.time_to_first_token),
        draft=duration(statistics.draft),
        verify=duration(statistics.verify),
        queue=duration(statistics.queue),
        network=duration(statistics.network),
        orchestrator=duration(statistics.orchestrator),
        draft_hidden=duration(statistics.draft_hidden),
    )
