"""Sessions and turns to rows and back: nothing that a text depends on may be another afterwards."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.rounds.result import Origin
from orchestrator.rounds.terms import RoundTerms
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.messages import from_user
from orchestrator.sessions.conversation.next_prompt import next_prompt
from orchestrator.sessions.conversation.resolving import ModelLimits, ResolvedTurn
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.conversation.settings import ADAPTIVE, GenerationSettings
from orchestrator.sessions.conversation.turn_limits import FinishReason, TurnLimits
from orchestrator.sessions.durability.payloads import (
    TurnPayload,
    content_of,
    end_row,
    restored,
    resumable,
    session_payload,
    session_payload_of,
    told,
    turn_payload_of,
    turn_row,
)
from orchestrator.sessions.durability.token_bytes import bytes_of, tokens_of
from orchestrator.sessions.turns.readers import TurnReader
from orchestrator.sessions.turns.statistics import TurnStatistics
from orchestrator.sessions.turns.turn_record import TurnEnded, TurnRecord, TurnStarted
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.settings import SpeculationSettings
from orchestrator.store.rows import SessionRow, StoredTurn
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.rpc.status import status_of
from slipstream.sampling.outcome import LogprobRequest, TokenLogprobs
from slipstream.sampling.rule import Acceptance, SamplingDefaults, SamplingRule
from slipstream.sampling.structure import Structure, StructureKind
from slipstream.sampling_fields import MAX_SEED

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
TEXTS = st.text(max_size=5)
WHEN = datetime(2026, 1, 1, 12, 30, 0, 123456, UTC)

RULES = st.builds(
    SamplingRule,
    temperature=FLOATS,
    top_k=st.integers(0, 2**31 - 1),
    top_p=FLOATS,
    min_p=FLOATS,
    seed=st.integers(0, MAX_SEED),
    end_token_ids=TOKENS.map(tuple),
    first_end_position=st.integers(0, 2**31 - 1),
    typical_p=FLOATS,
    repetition_penalty=FLOATS,
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    logit_bias=st.lists(st.tuples(st.integers(0, 9), FLOATS), max_size=3).map(tuple),
    allowed_token_ids=TOKENS.map(tuple),
    banned_token_ids=TOKENS.map(tuple),
    first_generated_position=st.integers(0, 2**31 - 1),
    structure=st.none() | st.builds(Structure, st.sampled_from(StructureKind), TEXTS),
    acceptance=st.sampled_from(Acceptance),
    proposal_top_k=st.integers(1, 1024),
)
RESOLVED = st.builds(
    ResolvedTurn,
    st.builds(
        RoundTerms,
        RULES,
        st.builds(
            SpeculationSettings,
            st.none() | st.integers(0, 8),
            st.none() | st.sampled_from(Source),
        ),
        st.none() | st.builds(LogprobRequest, st.integers(0, 20), st.booleans()),
    ),
    st.builds(
        TurnLimits,
        st.integers(1, 2**31 - 1),
        st.integers(1, 2**31 - 1),
        st.lists(TEXTS, max_size=2).map(tuple),
        TOKENS.map(tuple),
        st.booleans(),
    ),
    st.booleans(),
    st.sampled_from(["", "summaries"]),
)
SETTINGS = st.builds(
    GenerationSettings,
    temperature=st.none() | FLOATS,
    seed=st.none() | st.integers(0, MAX_SEED),
    logit_bias=st.none() | st.just(((3, 0.1),)),
    stop_strings=st.none() | st.lists(TEXTS, max_size=2).map(tuple),
    token_origins=st.none() | st.booleans(),
    logprobs=st.none() | st.just(LogprobRequest(2)) | st.just(LogprobRequest(0, token_bytes=True)),
    structure=st.none() | st.just(Structure(StructureKind.REGEX, "é+")),
    acceptance=st.none() | st.sampled_from(Acceptance),
    draft_length=st.none() | st.just(ADAPTIVE) | st.integers(0, 8),
    proposer=st.none() | st.sampled_from(Source),
    task=st.sampled_from([None, "", "summaries"]),
    cleared=st.just(()) | st.just(("stop_strings", "temperature")),
)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.from_files(load_tokenizer_files("arithmetic:").files)


def row_of(session: Session, system: str | None = None) -> SessionRow:
    payload = session_payload(session, system, GenerationSettings())
    return SessionRow(session.id, "o", 1, True, 0, 0, "", b"", 0, "", payload)


@given(RESOLVED, st.none() | TEXTS, TOKENS, st.integers(0, 5))
def test_what_a_turn_is_run_under_comes_back_to_the_last_bit(
    resolved: ResolvedTurn, content: str | None, prompt: list[int], shared: int
) -> None:
    row = turn_row(3, ("name", b"\0"), shared, prompt, TurnPayload(content, resolved, "00-1-2-01"))
    assert turn_payload_of(row) == TurnPayload(content, resolved, "00-1-2-01")
    assert tokens_of(row.prompt) == prompt[shared:] and row.shared_count == shared


@given(SETTINGS, st.none() | TEXTS, st.dictionaries(TEXTS, TEXTS))
def test_what_a_session_was_created_with_comes_back(
    settings: GenerationSettings, system: str | None, metadata: dict[str, str]
) -> None:
    session = Session("s", None, WHEN, system)  # no text is made
    row = replace(row_of(session), payload=session_payload(session, system, settings, metadata))
    said = session_payload_of(row)
    assert (said.settings, said.system, said.clock, said.metadata) == (settings, system, WHEN, metadata)


def test_a_session_that_was_stored_before_there_was_metadata_has_none() -> None:
    row = row_of(Session("s", None, WHEN))
    payload = json.loads(row.payload)
    assert payload.pop("metadata") == {}
    assert session_payload_of(replace(row, payload=json.dumps(payload))).metadata == {}


def test_tokens_are_four_bytes_each_wherever_they_are_written() -> None:
    assert bytes_of([1, 2**31 - 1]) == b"\x01\0\0\0\xff\xff\xff\x7f"
    assert tokens_of(bytes_of([])) == []


def ended_turn(
    codec: Codec,
    session: Session,
    content: str,
    tokens: list[int],
    error: Exception | None = None,
    *,
    is_private: bool = False,
) -> StoredTurn:
    """A turn as it is run, written down when it begins and when it ends."""
    rule = SamplingRule(seed=7, end_token_ids=(2,))
    speculation = SpeculationSettings()
    terms = RoundTerms(rule, speculation, LogprobRequest(1), do_not_collect=is_private)
    resolved = ResolvedTurn(terms, TurnLimits(50, 500), tells_origins=True)
    prompt = next_prompt(session, from_user(content)).tokens()
    before = len(session.tokens)
    shared = next(
        (i for i, (a, b) in enumerate(zip(session.tokens, prompt, strict=False)) if a != b), min(before, len(prompt))
    )
    begun = turn_row(session.turn_count + 1, ("r", b"f"), shared, prompt, TurnPayload(content, resolved, ""))
    answer = session.begin_turn(prompt, rule, resolved.limits, from_user(content), is_private=is_private)
    record = TurnRecord(session.turn_count, TurnStarted("s", "r", 7, len(prompt)), tells_origins=True)
    if tokens:
        scores = [TokenLogprobs(token, -0.1, ((1, -0.3),)) for token in tokens]
        record.add(answer.commit(tokens), [Origin.DRAFT] * len(tokens), scores, scores[:1])
    held = answer.cut_short()
    statistics = TurnStatistics(round_count=2, draft_lengths=Counter({4: 1}))
    assert answer.finish_reason is not None
    ended = TurnEnded(answer.finish_reason, len(prompt), 3, len(tokens), statistics, held, error, "stop")
    session.end_turn()
    record.end(ended)
    return StoredTurn(begun, end_row(record, ended, forgotten=not tokens))


def test_a_session_is_restored_private_if_a_turn_that_it_kept_is(codec: Codec) -> None:
    session = Session("s", codec, WHEN)
    failure = InvalidFieldsError([])
    turns = [
        ended_turn(codec, session, "one", [30]),
        ended_turn(codec, session, "lost", [], failure, is_private=True),
        ended_turn(codec, session, "two", [40], is_private=True),
        ended_turn(codec, session, "three", [50]),
    ]
    row = row_of(session)
    assert [restored(row, turns[:count], codec)[0].is_private for count in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_a_session_is_restored_as_it_was_with_all_its_turns(codec: Codec) -> None:
    session = Session("s", codec, WHEN, "be brief")
    failure = InvalidFieldsError([FieldViolation("f", "must not")])
    turns = [
        ended_turn(codec, session, "hello", [30, 40, 50]),
        ended_turn(codec, session, "lost", [], failure),
        ended_turn(codec, session, "and", [60, 2]),
        ended_turn(codec, session, "more", [70, 71]),
    ]
    again, said, records = restored(row_of(session, "be brief"), turns, codec)
    assert said.system == "be brief"
    assert (again.tokens, again.messages, again.turn_count) == (session.tokens, session.messages, 4)
    assert (again.acceptance, again.clock) == (session.acceptance, session.clock)
    assert next_prompt(again, from_user("next")).tokens() == next_prompt(session, from_user("next")).tokens(), (
        "the end token is not doubled"
    )
    assert [record.turn for record in records] == [1, 2, 3, 4]
    reader = TurnReader(records[0])
    events = [reader.next(), reader.next(), reader.next()]
    assert events[0] == TurnStarted("s", "r", 7, turns[0].begun.shared_count + len(tokens_of(turns[0].begun.prompt)))
    delta, ended = events[1], events[2]
    assert delta is not None and ended is not None
    assert list(delta.token_ids) == [30, 40, 50] and list(delta.origins) == [Origin.DRAFT] * 3  # type: ignore[union-attr]
    assert [entry.top for entry in delta.logprobs] == [((1, -0.3),)] * 3  # type: ignore[union-attr]
    assert len(delta.prompt_logprobs) == 1  # type: ignore[union-attr]
    assert ended.statistics == TurnStatistics(  # type: ignore[union-attr]
        round_count=2, draft_lengths=Counter({4: 1})
    )
    assert ended.stop_string == "stop"  # type: ignore[union-attr]
    undone = records[1].ended
    assert undone is not None and undone.error is not None
    assert status_of(undone.error) == status_of(failure), "clients are told the same"


def test_of_an_internal_error_only_its_kind_is_kept(codec: Codec) -> None:
    session = Session("s", codec, WHEN)
    turn = ended_turn(codec, session, "lost", [], ValueError("/home/me/secret"))
    _, _, (record,) = restored(row_of(session), [turn], codec)
    assert record.ended is not None and str(record.ended.error) == "internal error: ValueError"


def test_a_turn_that_has_not_ended_is_not_part_of_its_session_yet(codec: Codec) -> None:
    session = Session("s", codec, WHEN)
    first = ended_turn(codec, session, "hello", [30])
    tokens = list(session.tokens)
    running = replace(ended_turn(codec, session, "and", [40]), end=None, tokens=bytes_of([40]))
    again, _, records = restored(row_of(session), [first, running], codec)
    assert again.tokens == tokens and again.turn_count == 1 and len(records) == 1


def test_all_of_a_turn_is_told(codec: Codec) -> None:
    session = Session("s", codec, WHEN)
    turn = told(ended_turn(codec, session, "hello", [30, 2]))
    assert (turn.turn, turn.request_id, turn.seed, turn.finish_reason) == (1, "r", 7, FinishReason.END_TOKEN)
    assert (
        content_of(turn.past.said) == "hello" and list(turn.past.tokens) == [30, 2] and turn.past.ended_with_end_token
    )
    assert turn.past.text == session.messages[-1].content


@pytest.mark.parametrize(
    ("asked", "fits", "run"),
    [
        (SpeculationSettings(None), True, SpeculationSettings(None)),
        (SpeculationSettings(8), True, SpeculationSettings(5)),
        (SpeculationSettings(4), True, SpeculationSettings(4)),
        (SpeculationSettings(4), False, SpeculationSettings(0)),
        (SpeculationSettings(8, source=Source.NGRAM), False, SpeculationSettings(5, source=Source.NGRAM)),
    ],
)
def test_a_turn_is_gone_on_with_though_the_draft_is_another(
    asked: SpeculationSettings, fits: bool, run: SpeculationSettings
) -> None:
    limits = ModelLimits(9, 9, (), SamplingDefaults(), None, 5, 9)
    resolved = ResolvedTurn(RoundTerms(SamplingRule(seed=3), asked), TurnLimits(1, 1))
    resumed = resumable(resolved, limits, draft_fits=fits)
    assert resumed.terms.speculation == run
    assert (resumed.terms.rule, resumed.limits) == (resolved.terms.rule, resolved.limits)
