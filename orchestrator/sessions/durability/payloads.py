"""Sessions and turns as rows of the store, and back. Pure.

The row that is written before a turn's first token determines the turn's text: it holds the prompt,
the rule with its seed, and the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import UnreadableError
from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.result import Origin
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import NO_OPTIONS, Message, TemplateOptions, from_user
from orchestrator.sessions.conversation.resolving import ModelLimits, ResolvedTurn
from orchestrator.sessions.conversation.session import ANOTHER_PROMPT, Session, common_prefix_length
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.conversation.turn_limits import ENDED_WITH_END_TOKEN, FinishReason, PastTurn
from orchestrator.sessions.durability.token_bytes import bytes_of, tokens_of
from orchestrator.sessions.turns.request_names import RequestName
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord, TurnStarted, WrittenRecord
from orchestrator.speculation.settings import SpeculationSettings
from orchestrator.store.rows import EndRow, SessionRow, StoredTurn, TurnRow
from slipstream.errors import Code, FieldViolation, SlipstreamError
from slipstream.rpc.status import PeerError
from slipstream.sampling.outcome import TokenLogprobs

PayloadT = TypeVar("PayloadT")

_NO_METADATA: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SessionPayload:
    """The payload of a session's row, which the store does not read."""

    system: str | None
    clock: datetime
    settings: GenerationSettings
    metadata: dict[str, str] = field(default_factory=dict)
    options: TemplateOptions = NO_OPTIONS
    prompt_changed_after: int = 0
    """The last turn of another session that this one begins with, if its system message or options
    are not that session's. 0: none."""


@dataclass(frozen=True, slots=True)
class TurnPayload:
    """The payload of a turn's row: what the turn runs under."""

    content: str | None
    """The user's message of a turn that answers it alone, as all did once."""
    resolved: ResolvedTurn
    traceparent: str
    """The request's traceparent, so that a resumed turn shows in the same trace."""
    settings: GenerationSettings | None = None
    """The message's settings over the session's. None for a generation, and here and below for a
    turn that an earlier version has written."""
    note: str = ""
    """Text that the caller keeps with the turn."""
    created: float | None = None
    """When the turn began, in seconds since the epoch."""
    messages: tuple[Message, ...] = ()
    """The messages of a turn that answers others."""

    @classmethod
    def of(
        cls,
        said: Sequence[Message],
        resolved: ResolvedTurn,
        traceparent: str,
        settings: GenerationSettings | None = None,
        note: str = "",
        created: float | None = None,
    ) -> TurnPayload:
        """Return the payload of a turn that answers these messages."""
        content = content_of(said)
        messages = () if content is not None else tuple(said)
        return cls(content, resolved, traceparent, settings, note, created, messages)

    @property
    def said(self) -> tuple[Message, ...]:
        """The messages that the turn answers."""
        return self.messages if self.content is None else from_user(self.content)


@dataclass(frozen=True, slots=True)
class ErrorPayload:
    """An error as clients get it."""

    code: int
    reason: str
    message: str
    metadata: dict[str, str]
    violations: tuple[tuple[str, str], ...]
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class EndPayload:
    """The payload of a turn's end: its text token by token, and how it ended."""

    texts: tuple[str, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    prompt_token_count: int
    cached_token_count: int
    text: str
    """The text that was held back until the end."""
    statistics: TurnStatistics
    error: ErrorPayload | None
    stop_string: str | None = None


def content_of(said: Sequence[Message]) -> str | None:
    """Return the content of a single message of a user; None if the messages are others."""
    return said[0].content if len(said) == 1 and said[0].role == "user" else None


_SESSION, _TURN, _END = TypeAdapter(SessionPayload), TypeAdapter(TurnPayload), TypeAdapter(EndPayload)


def target_of(info: ModelInfo) -> str:
    """Return the name of what a session's tokens come from: weights, tokenizer, dtype, sampling."""
    return "/".join((info.weights_fingerprint, info.tokenizer_fingerprint, info.dtype, str(info.sampling_version)))


def _read(kind: TypeAdapter[PayloadT], payload: str) -> PayloadT:
    """Read a payload. UnreadableError if this version cannot."""
    try:
        return kind.validate_json(payload)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, found["loc"])) for found in error.errors()[:3])
        raise UnreadableError(f"this version cannot read what is stored of the session: {where}") from error


def session_payload(
    session: Session, system: str | None, settings: GenerationSettings, metadata: Mapping[str, str] = _NO_METADATA
) -> str:
    """Return the payload of a new session's row."""
    payload = SessionPayload(system, session.clock, settings, dict(metadata), session.options)
    return _SESSION.dump_json(payload).decode()


def row_with_metadata(row: SessionRow, metadata: Mapping[str, str]) -> SessionRow:
    """Return a session's row with other metadata. UnreadableError."""
    return replace(row, payload=_SESSION.dump_json(replace(session_payload_of(row), metadata=dict(metadata))).decode())


def new_session_row(
    session: Session,
    owner_id: str,
    name: RequestName,
    settings: GenerationSettings,
    created: float,
    *,
    system: str | None = None,
    principal: str,
    choice: int = 0,
    listed: bool = True,
    metadata: Mapping[str, str] = _NO_METADATA,
) -> SessionRow:
    """Return the row of a session to create. ``created`` is in seconds since the epoch."""
    moment = round(created * 1e6)
    return SessionRow(
        id=session.id,
        owner=owner_id,
        epoch=1,
        listed=listed,
        created=moment,
        last_active=moment,
        request_id=name.id,
        fingerprint=name.fingerprint,
        choice=choice,
        target="",
        payload=session_payload(session, system, settings, metadata),
        message_count=len(session.messages),
        principal=principal,
    )


def fork_row(
    source: SessionRow,
    session_id: str,
    owner_id: str,
    name: RequestName,
    created: float,
    *,
    after_turn: int,
    system: str | None,
    options: TemplateOptions | None,
) -> SessionRow:
    """Return the row of a new session that begins like ``source`` after a turn, as
    `new_session_row`.

    ``system`` takes the place of the other's system message; an empty one is none, and None leaves
    it. ``options`` take the place of the other's unless they are None.
    """
    moment = round(created * 1e6)
    before = said = session_payload_of(source)
    if system is not None:
        said = replace(said, system=system or None)
    if options is not None:
        said = replace(said, options=options)
    if said != before:
        said = replace(said, prompt_changed_after=after_turn)
    return replace(
        source,
        id=session_id,
        owner=owner_id,
        epoch=1,
        created=moment,
        last_active=moment,
        request_id=name.id,
        fingerprint=name.fingerprint,
        payload=_SESSION.dump_json(said).decode(),
        running_turn=None,
    )


def row_with_counts(row: SessionRow, session: Session) -> SessionRow:
    """Return a session's row with the session's counts."""
    return replace(
        row,
        turn_count=session.turn_count,
        token_count=len(session.tokens),
        message_count=len(session.messages),
    )


def session_payload_of(row: SessionRow) -> SessionPayload:
    """Read the payload of a session's row. UnreadableError."""
    return _read(_SESSION, row.payload)


def next_turn_row(session: Session, prompt: Sequence[int], payload: TurnPayload, name: RequestName) -> TurnRow:
    """Return the row of a session's next turn, which is about to begin."""
    shared_count = common_prefix_length(session.tokens, prompt)
    return turn_row(session.turn_count + 1, (name.id, name.fingerprint), shared_count, prompt, payload)


def turn_row(
    turn: int, name: tuple[str, bytes], shared_count: int, prompt: Sequence[int], payload: TurnPayload
) -> TurnRow:
    """Return the row of a turn that is about to begin.

    ``name`` is its request's id and fingerprint.
    """
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
    """Read the payload of a turn's row. UnreadableError."""
    return _read(_TURN, row.payload)


def end_row(record: TurnRecord, ended: TurnEnded, *, forgotten: bool) -> EndRow:
    """Return the row of a turn's end. If ``forgotten``, its request may try again."""
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
        ended.stop_string,
    )
    return EndRow(bytes_of(record.tokens), _END.dump_json(payload).decode(), forgotten)


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """A turn that has ended, with all that a caller may read of it."""

    turn: int
    request_id: str
    seed: int
    past: PastTurn
    finish_reason: FinishReason
    error: Exception | None


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A turn as it was asked for. It is running until it has ended."""

    turn: int
    request_id: str
    session: SessionPayload
    payload: TurnPayload
    is_running: bool


def told(stored: StoredTurn) -> ToldTurn:
    """Return a turn that has ended from its rows. UnreadableError."""
    assert stored.end is not None
    begun, end = turn_payload_of(stored.begun), _read(_END, stored.end.payload)
    rule = begun.resolved.terms.rule
    error = None if end.error is None else _error(end.error)
    return ToldTurn(
        stored.begun.turn, stored.begun.request_id, rule.seed, _past(stored, begun, end), end.finish_reason, error
    )


def told_record(session_id: str, stored: StoredTurn) -> TurnRecord:
    """Return the record of a turn that has ended from its rows. UnreadableError."""
    assert stored.end is not None
    return _record(session_id, stored, turn_payload_of(stored.begun), _read(_END, stored.end.payload))


def restored(
    row: SessionRow, turns: Sequence[StoredTurn], codec: Codec
) -> tuple[Session, SessionPayload, list[TurnRecord]]:
    """Return a session as it was after its last ended turn, its payload, and its turns' records.

    UnreadableError.
    """
    said = session_payload_of(row)
    session, records = Session(row.id, codec, said.clock, said.system, said.options), []
    for stored in turns:
        if stored.end is None:
            continue
        begun, end = turn_payload_of(stored.begun), _read(_END, stored.end.payload)
        session.turn_count = stored.begun.turn - 1
        records.append(_record(row.id, stored, begun, end))
        session.replay_turn(_past(stored, begun, end))
    answered = [stored.begun.turn for stored in turns if stored.end is not None and stored.end.tokens]
    if answered and answered[-1] <= said.prompt_changed_after:
        session.rendered = ANOTHER_PROMPT
    return session, said, records


def _past(stored: StoredTurn, begun: TurnPayload, end: EndPayload) -> PastTurn:
    assert stored.end is not None
    return PastTurn(
        stored.begun.shared_count,
        tokens_of(stored.begun.prompt),
        begun.said,
        tokens_of(stored.end.tokens),
        "".join(end.texts) + end.text,
        begun.resolved.terms.rule.acceptance,
        end.finish_reason in ENDED_WITH_END_TOKEN,
        begun.resolved.terms.do_not_collect,
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
        end.stop_string,
    )
    written = WrittenRecord(end.texts, end.origins, end.logprobs, end.prompt_logprobs)
    return TurnRecord.of_written(
        stored.begun.turn,
        started,
        tokens,
        written,
        ended,
        tells_origins=begun.resolved.tells_origins,
        tells_token_bytes=begun.resolved.tells_token_bytes,
    )


def resumable(resolved: ResolvedTurn, limits: ModelLimits, *, draft_fits: bool) -> ResolvedTurn:
    """Return what a turn is resumed under. The draft may be another one by now: the text does not
    depend on it."""
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
