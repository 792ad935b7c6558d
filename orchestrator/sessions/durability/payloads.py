"""Sessions and turns to the store's rows and back. Pure.

A turn's text is a function of what is written before its first token: its prompt, the rule with its
seed, its limits.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import UnreadableError
from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.result import Origin
from orchestrator.sessions.conversation.resolving import ModelLimits, ResolvedTurn
from orchestrator.sessions.conversation.session import ENDED_WITH_END_TOKEN, FinishReason, PastTurn, Session
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.conversation.text import Codec
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord, TurnStarted, WrittenRecord
from orchestrator.speculation.session import SpeculationSettings
from orchestrator.store.rows import EndRow, SessionRow, StoredTurn, TurnRow
from slipstream.errors import Code, FieldViolation, SlipstreamError
from slipstream.rpc.status import PeerError
from slipstream.sampling.outcome import TokenLogprobs

PayloadT = TypeVar("PayloadT")


@dataclass(frozen=True, slots=True)
class SessionPayload:
    """What a session's row says that only we can read."""

    system: str | None
    clock: datetime
    settings: GenerationSettings


@dataclass(frozen=True, slots=True)
class TurnPayload:
    """What a turn is run under."""

    content: str | None
    resolved: ResolvedTurn
    traceparent: str
    """Of the request, so that a turn that is gone on with shows in the same trace."""


@dataclass(frozen=True, slots=True)
class ErrorPayload:
    """What an error says to clients."""

    code: int
    reason: str
    message: str
    metadata: dict[str, str]
    violations: tuple[tuple[str, str], ...]
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class EndPayload:
    """What a turn said, token by token, and how it ended."""

    texts: tuple[str, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    prompt_token_count: int
    cached_token_count: int
    text: str
    """What had been held back."""
    statistics: TurnStatistics
    error: ErrorPayload | None


_SESSION, _TURN, _END = TypeAdapter(SessionPayload), TypeAdapter(TurnPayload), TypeAdapter(EndPayload)


def target_of(info: ModelInfo) -> str:
    """What the tokens of a session come from: weights, and all else that its text depends on."""
    return "/".join((info.weights_fingerprint, info.tokenizer_fingerprint, info.dtype, str(info.sampling_version)))


def _read(kind: TypeAdapter[PayloadT], payload: str) -> PayloadT:
    """UnreadableError if it is none."""
    try:
        return kind.validate_json(payload)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, found["loc"])) for found in error.errors()[:3])
        raise UnreadableError(f"what is written of the session cannot be read by this version: {where}") from error


def bytes_of(tokens: Sequence[int]) -> bytes:
    """Token ids as int32, little-endian."""
    numbers = array("i", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def tokens_of(data: bytes) -> list[int]:
    """Back from `bytes_of`."""
    numbers = array("i", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def session_payload(session: Session, system: str | None, settings: GenerationSettings) -> str:
    """For a new session's row."""
    return _SESSION.dump_json(SessionPayload(system, session.clock, settings)).decode()


def session_payload_of(row: SessionRow) -> SessionPayload:
    """From a session's row."""
    return _read(_SESSION, row.payload)


def turn_row(
    turn: int,
    name: tuple[str, bytes],
    shared_count: int,
    prompt: Sequence[int],
    payload: TurnPayload,
) -> TurnRow:
    """A turn that is about to begin; ``name`` is its request's with its fingerprint."""
    request_id, fingerprint = name
    return TurnRow(
        turn,
        request_id,
        fingerprint,
        shared_count,
        bytes_of(prompt[shared_count:]),
        _TURN.dump_json(payload).decode(),
    )


def turn_payload_of(row: TurnRow) -> TurnPayload:
    """From a turn's row."""
    return _read(_TURN, row.payload)


def end_row(record: TurnRecord, ended: TurnEnded, *, forgotten: bool) -> EndRow:
    """A turn that has ended."""
    written = record.written
    payload = EndPayload(
        tuple(written.texts),
        tuple(written.origins),
        tuple(written.logprobs),
        tuple(written.prompt_logprobs),
        ended.finish_reason,
        ended.prompt_token_count,
        ended.cached_token_count,
        ended.text,
        ended.statistics,
        None if ended.error is None else _error_payload(ended.error),
    )
    return EndRow(bytes_of(record.tokens), _END.dump_json(payload).decode(), forgotten)


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """A turn that has ended, as it is told to whoever wants all of it."""

    turn: int
    request_id: str
    seed: int
    past: PastTurn
    finish_reason: FinishReason
    error: Exception | None


def told(stored: StoredTurn) -> ToldTurn:
    """Of a turn that has ended."""
    assert stored.end is not None
    begun, end = turn_payload_of(stored.begun), _read(_END, stored.end.payload)
    rule = begun.resolved.terms.rule
    error = None if end.error is None else _error(end.error)
    return ToldTurn(
        stored.begun.turn, stored.begun.request_id, rule.seed, _past(stored, begun, end), end.finish_reason, error
    )


def restored(
    row: SessionRow, turns: Sequence[StoredTurn], codec: Codec
) -> tuple[Session, SessionPayload, list[TurnRecord]]:
    """A session as it was after the last of its turns that has ended, and those turns' records."""
    said = session_payload_of(row)
    session, records = Session(row.id, codec, said.clock, said.system), []
    for stored in turns:
        if stored.end is None:
            continue
        begun, end = turn_payload_of(stored.begun), _read(_END, stored.end.payload)
        session.turn_count = stored.begun.turn - 1
        records.append(_record(row.id, stored, begun, end))
        session.replay_turn(_past(stored, begun, end))
    return session, said, records


def _past(stored: StoredTurn, begun: TurnPayload, end: EndPayload) -> PastTurn:
    assert stored.end is not None
    return PastTurn(
        stored.begun.shared_count,
        tokens_of(stored.begun.prompt),
        begun.content,
        tokens_of(stored.end.tokens),
        "".join(end.texts) + end.text,
        begun.resolved.terms.rule.acceptance,
        end.finish_reason in ENDED_WITH_END_TOKEN,
    )


def _record(session_id: str, stored: StoredTurn, begun: TurnPayload, end: EndPayload) -> TurnRecord:
    assert stored.end is not None
    tokens = tokens_of(stored.end.tokens)
    rule = begun.resolved.terms.rule
    started = TurnStarted(session_id, stored.begun.request_id, rule.seed, end.prompt_token_count)
    ended = TurnEnded(
        end.finish_reason,
        end.prompt_token_count,
        end.cached_token_count,
        len(tokens),
        end.statistics,
        end.text,
        None if end.error is None else _error(end.error),
    )
    written = WrittenRecord(end.texts, end.origins, end.logprobs, end.prompt_logprobs)
    tells_origins = begun.resolved.tells_origins
    return TurnRecord.of_written(stored.begun.turn, started, tokens, written, ended, tells_origins=tells_origins)


def resumable(resolved: ResolvedTurn, limits: ModelLimits, *, draft_fits: bool) -> ResolvedTurn:
    """What a turn is gone on with where the draft may be another by now: its text does not depend
    on it."""
    speculation = resolved.terms.speculation
    if speculation.uses_draft and not draft_fits:
        speculation = SpeculationSettings(draft_length=0)
    elif speculation.draft_length is not None:
        speculation = replace(speculation, draft_length=min(speculation.draft_length, limits.max_draft_length))
    return replace(resolved, terms=replace(resolved.terms, speculation=speculation))


def _error_payload(error: Exception) -> ErrorPayload:
    if not isinstance(error, SlipstreamError):
        error = SlipstreamError(f"internal error: {type(error).__name__}")
    violations = tuple((violation.field, violation.description) for violation in error.violations)
    return ErrorPayload(int(error.code), error.reason, str(error), error.metadata, violations, error.retry_after)


def _error(said: ErrorPayload) -> PeerError:
    violations = [FieldViolation(field, description) for field, description in said.violations]
    return PeerError(Code(said.code), said.reason, said.message, said.metadata, violations, said.retry_after)
