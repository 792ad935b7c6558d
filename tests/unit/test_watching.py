"""What looks at turns: which rounds are kept, how many spans are written, what it all comes to."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orchestrator.contract.events import _speculation
from orchestrator.contract.traces import fitting_turns, turn_trace_message
from orchestrator.errors import VerifierLostError
from orchestrator.peers.exchange import PeerTiming
from orchestrator.rounds.note import RoundNote
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.terms import RoundTerms
from orchestrator.sessions.conversation.resolving import ResolvedTurn
from orchestrator.sessions.conversation.turn_limits import FinishReason, TurnLimits
from orchestrator.sessions.turns.acceptance_window import AcceptanceWindow
from orchestrator.sessions.turns.statistics import TurnStatistics, per_position
from orchestrator.sessions.turns.turn_record import TurnEnded
from orchestrator.sessions.turns.watcher import TurnBegun
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.settings import SpeculationSettings
from orchestrator.watching.budget import SpanBudget
from orchestrator.watching.ring import TurnNote, TurnRing
from orchestrator.watching.sampled_rounds import SampledRounds
from orchestrator.watching.totals import Totals
from orchestrator.watching.turn_trace import MOST_SPANS, Detail
from orchestrator.watching.watching import WatchedTurn, Watching
from slipstream.cli.words import proposer_of
from slipstream.client.results import Result
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import names, tracing
from slipstream.v1 import turn_pb2
from tests.clock import Clock

TIMING = PeerTiming(0.001, 0.004, 0.006, 0.008, 1, 9)


def result(drafted: int = 4, accepted: int = 2, source: Source = Source.DRAFT) -> RoundResult:
    return RoundResult(
        tokens=(*range(accepted), 99),
        proposal_length=drafted,
        source=source if drafted else None,
        accepted_count=accepted,
        prefilled_count=1,
        verify=TIMING,
        waited=0.002,
        awaited=None,
        drafted=[],
        draft_failed=False,
        switched_off=False,
        margin=0.5,
        logprobs=(),
        prompt_logprobs=(),
    )


def note(
    number: int, seconds: float = 0.01, outcome: RoundResult | BaseException | None = None, prefix: str = ""
) -> RoundNote:
    """A round that has ended."""
    made = RoundNote(number, 10, 0.0, prefix, began=1.0)
    made.begin_verify(names.VERIFY).finish(TIMING)
    if isinstance(outcome, BaseException):
        made.fail(outcome)
    else:
        brought = outcome or result()
        made.end(brought, len(brought.tokens))
    made.ended = made.began + seconds
    return made


# --- which rounds are kept


def test_of_many_rounds_the_slowest_and_the_least_accepted_are_kept_and_not_the_first() -> None:
    kept = SampledRounds(8)
    for number in range(1, 1001):
        slow = number in (500, 800, 900)
        poor = number in (600, 601)
        kept.add(note(number, 0.5 if slow else 0.01, result(4, 0 if poor else 3)))
    shown = [each.number for each in kept.best(8)]
    assert kept.count == 1000 and len(shown) == 8 == len(set(shown))
    assert {500, 800, 900, 600, 601} <= set(shown)
    assert shown == sorted(shown)


def test_of_those_of_which_nothing_was_accepted_the_longest_proposal_is_the_worst() -> None:
    kept = SampledRounds(2)
    for number, drafted in enumerate((2, 16, 4, 8), 1):
        kept.add(note(number, 0.01 * number, result(drafted, 0)))
    assert [each.number for each in kept.best(2)] == [2, 4], "the slowest, and the longest that was all wrong"


def test_a_round_that_failed_is_kept_and_so_is_one_whose_peers_have_made_spans() -> None:
    kept = SampledRounds(2)
    for number in range(1, 200):
        failed = VerifierLostError("away") if number == 7 else None
        kept.add(note(number, 0.001 * number, failed, "00-" if number == 3 else ""))
    shown = [each.number for each in kept.best(2)]
    assert 3 in shown and 7 in shown
    assert kept.pinned_count == 1 and len(shown) <= 3


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 8), st.integers(0, 8), st.booleans()), max_size=60))
def test_no_more_are_kept_than_may_be_and_none_twice(rounds: list[tuple[float, int, int, bool]]) -> None:
    kept = SampledRounds(10)
    for number, (seconds, drafted, accepted, fails) in enumerate(rounds, 1):
        outcome = VerifierLostError("") if fails else result(drafted, min(drafted, accepted))
        kept.add(note(number, seconds, outcome))
    for most in (0, 1, 4, 10):
        shown = [each.number for each in kept.best(most)]
        assert len(shown) == len(set(shown)) == min(most, len(rounds))
        assert shown == sorted(shown)


def test_the_ring_gives_up_the_oldest_turns_and_keeps_the_last_one_however_large() -> None:
    ring = TurnRing(most_rounds=10)  # two turns of four rounds each
    for turn in range(1, 6):
        made = TurnNote("s", turn)
        ring.begin(made)
        for number in range(1, 5):
            made.rounds.add(note(number))
        ring.end(made)
    assert [turn.turn for turn in ring.turns_of("s", 64)] == [4, 5]
    assert ring.turns_of("another", 64) == []
    running = TurnNote("s", 6)
    ring.begin(running)
    assert [turn.turn for turn in ring.turns_of("s", 2)] == [5, 6], "a turn that runs is there too"
    for number in range(1, 100):
        running.rounds.add(note(number))
    ring.end(running)
    assert [turn.turn for turn in ring.turns_of("s", 64)] == [6]


def test_turns_that_were_ended_before_their_first_round_take_room_too() -> None:
    ring = TurnRing(most_rounds=10)
    for turn in range(1, 100):
        made = TurnNote("s", turn)
        ring.begin(made)
        ring.end(made)
    assert [turn.turn for turn in ring.turns_of("s", 64)] == list(range(90, 100))


# --- how many spans


def test_the_budget_fills_at_its_rate_and_lends_a_turn_its_least() -> None:
    clock = Clock()
    budget = SpanBudget(10, 20, clock)
    assert budget.spend(15) and not budget.spend(6)
    assert budget.spend_up_to(100, 4) == 5, "what is left"
    assert budget.spend_up_to(100, 4) == 4, "the least, lent"
    clock.now += 0.4
    assert not budget.spend(1), "which is paid back first"
    clock.now += 100
    assert budget.spend_up_to(100, 4) == 20, "no more than it holds"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """All spans, live ones and those written at the end."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    processor = SimpleSpanProcessor(exporter)
    provider.add_span_processor(processor)
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer("test"))
    monkeypatch.setattr("orchestrator.watching.turn_trace.tracer", provider.get_tracer("test"))
    monkeypatch.setattr(tracing, "_writer", tracing._Writer())
    tracing._writer.start(provider, processor)
    yield exporter
    provider.shutdown()


def begin(watching: Watching, session: str = "s", turn: int = 1, content: str | None = None) -> WatchedTurn:
    rule = SamplingRule()
    resolved = ResolvedTurn(RoundTerms(rule, SpeculationSettings()), TurnLimits(100, 1000))
    return watching.begin_turn(
        TurnBegun("model", "t", session, "", turn, resolved, AcceptanceWindow(), Context(), content=content)
    )


def run_turn(
    watching: Watching, rounds: int, error: Exception | None = None, content: str | None = None, proposes: int = 1
) -> TurnEnded:
    turn = begin(watching, content=content)
    statistics = TurnStatistics()
    for number in range(1, rounds + 1):
        made = turn.begin_round(number, 10)
        for _ in range(proposes):
            made.begin_propose(names.PROPOSE, "[::1]:50053").finish(TIMING)
        exchange = made.begin_verify(names.VERIFY)
        exchange.address = "node-a:50052"
        exchange.finish(TIMING)
        made.end(result(), 3)
        statistics.add(result(), 3)
        turn.round_ended(made, result())
    if error is not None:
        made = turn.begin_round(rounds + 1, 10)
        made.begin_verify(names.VERIFY).fail(error)
        made.fail(error)
        turn.round_ended(made, None)
    ended = TurnEnded(FinishReason.MAX_TOKENS, 5, 2, 3 * rounds, statistics, error=error)
    turn.ended(ended, "what was said")
    return ended


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


@pytest.mark.parametrize(
    ("detail", "rounds", "verifies"), [(Detail.TURN, 0, 0), (Detail.ROUND, 6, 0), (Detail.FULL, 6, 6)]
)
def test_detail_says_how_deep_a_trace_goes(
    spans: InMemorySpanExporter, detail: Detail, rounds: int, verifies: int
) -> None:
    run_turn(Watching(detail), 6)
    (root,) = named(spans, "chat model")
    assert root.attributes is not None
    assert root.attributes[names.ROUND_COUNT] == 6
    assert root.attributes[names.ROUNDS_NOT_TRACED] == 6 - rounds
    assert len(named(spans, names.ROUND)) == rounds
    assert len(named(spans, names.VERIFY)) == len(named(spans, names.PROPOSE)) == verifies
    for each in named(spans, names.ROUND):
        assert each.parent is not None and each.parent.span_id == root.context.span_id


def test_a_span_says_what_its_round_did(spans: InMemorySpanExporter) -> None:
    run_turn(Watching(), 1)
    (round_,), (verify,), (propose,) = (named(spans, name) for name in (names.ROUND, names.VERIFY, names.PROPOSE))
    assert round_.attributes is not None and verify.attributes is not None and propose.attributes is not None
    said = round_.attributes
    assert said[names.RUNG] == "draft" and said[names.NEXT_TOKEN_KIND] == "recovered"
    assert (said[names.DRAFT_LENGTH], said[names.ACCEPTED_COUNT], said[names.COMMITTED_COUNT]) == (4, 2, 3)
    assert said[names.ACCEPTANCE] == 0.5 and said[names.LEAST_MARGIN] == 0.5
    assert float(str(said[names.VERIFIER_IDLE_MS])) >= 2, "the way there and back is 2 ms"
    assert verify.parent == propose.parent == round_.context
    assert (verify.attributes["server.address"], verify.attributes["server.port"]) == ("node-a", 50052)
    assert propose.attributes["server.address"] == "::1"
    assert verify.attributes[names.NETWORK_MS] == pytest.approx(2)
    moments = [round_.start_time, verify.start_time, verify.end_time, round_.end_time]
    assert None not in moments and moments == sorted(moment or 0 for moment in moments)


@pytest.mark.parametrize("proposes", [0, 1, 2])
def test_a_trace_has_at_most_two_thousand_spans_those_of_the_services_counted(
    spans: InMemorySpanExporter, proposes: int
) -> None:
    watching = Watching()
    watching.budget = SpanBudget(1e9, 1e9)
    run_turn(watching, 3000, proposes=proposes)
    live = sum(bool(turn.trace_prefix) for turn in watching.ring.turns_of("s", 1)[0].rounds._pinned)
    written = len(spans.get_finished_spans())
    assert live > 100
    assert 700 < written + (1 + proposes) * live <= MOST_SPANS


def test_where_the_budget_is_spent_each_turn_still_has_its_worst_rounds(spans: InMemorySpanExporter) -> None:
    watching = Watching(Detail.ROUND)
    watching.budget = SpanBudget(0, 10)
    for _ in range(5):
        run_turn(watching, 50)
    per_turn = [root.attributes[names.ROUNDS_NOT_TRACED] for root in named(spans, "chat model") if root.attributes]
    assert per_turn == [40, 48, 48, 48, 48]
    assert watching.totals.folded == sum(per_turn)


def test_a_failed_round_and_its_turn_say_so_on_every_level_and_a_cancelled_one_has_not_failed(
    spans: InMemorySpanExporter,
) -> None:
    run_turn(Watching(), 1, VerifierLostError("gone"))
    for name in ("chat model", names.ROUND, names.VERIFY):
        failed = [span for span in named(spans, name) if not span.status.is_ok and span.status.description]
        assert [span.attributes[names.ERROR_TYPE] for span in failed if span.attributes] == ["VERIFIER_LOST"], name
    spans.clear()
    turn = begin(Watching())
    made = turn.begin_round(1, 3)
    made.begin_verify(names.VERIFY).fail(asyncio.CancelledError())
    made.fail(asyncio.CancelledError())
    turn.round_ended(made, None)
    turn.ended(TurnEnded(FinishReason.CANCELLED, 3, 0, 0, TurnStatistics()), "")
    for span in spans.get_finished_spans():
        assert span.status.is_unset and span.attributes is not None
        assert span.name == "chat model" or span.attributes[names.OUTCOME] == "cancelled"


@pytest.mark.parametrize(("variable", "shown"), [("true", True), ("false", False), (None, False)])
def test_text_is_traced_only_where_it_was_asked_for(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, variable: str | None, shown: bool
) -> None:
    if variable is not None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", variable)
    run_turn(Watching(), 1, content="my secret")
    everything = " ".join(span.to_json() for span in spans.get_finished_spans())
    assert ("my secret" in everything, "what was said" in everything) == (shown, shown)


def test_what_is_wrong_with_a_field_is_named_and_not_quoted(spans: InMemorySpanExporter) -> None:
    error = InvalidFieldsError([FieldViolation("content", "must not be 'my secret'")])
    watching = Watching()
    watching.refused(error, "model", Context(), "0123456789abcdef")
    watching.refused(error, "model", Context(), "my secret")
    root, nameless = spans.get_finished_spans()
    assert root.status.description == "content" and root.attributes is not None and nameless.attributes is not None
    assert root.attributes[names.CONVERSATION_ID] == "0123456789abcdef"
    assert names.CONVERSATION_ID not in nameless.attributes, "no name that an orchestrator has given"
    assert watching.totals.rejected == {"INVALID_FIELDS": 2, "OVERLOADED": 0, "PRINCIPAL_LIMIT": 0}


# --- what it comes to


def test_totals_are_what_the_rounds_and_the_turns_statistics_say() -> None:
    watching = Watching()
    ended = run_turn(watching, 7)
    totals, statistics = watching.totals, ended.statistics
    assert totals.generation_tokens == ended.generated_token_count
    drafted = sum(length * count for length, count in totals.draft_lengths.items())
    accepted = sum(length * count for length, count in totals.accepted_lengths.items())
    assert (drafted, accepted) == (statistics.draft_token_count, statistics.accepted_token_count)
    assert per_position(totals.accepted_lengths) == statistics.accepted_per_position[:2]
    assert totals.rounds == {("recovered", "draft"): 7}
    assert totals.finished == {"max_tokens": 1} and not totals.failed
    assert (totals.prompt_tokens, totals.cached_tokens) == (5, 2)
    assert totals.verify.count == totals.round.count == 7 and totals.token.count == 18
    assert totals.verify.sum == pytest.approx(7 * TIMING.forward)


@pytest.mark.parametrize(("committed", "length", "drafted"), [(11, 11.0, 10), (10, 10.0, 10), (3, 3.0, 3), (1, 1.0, 1)])
def test_what_a_turn_does_not_take_of_its_last_round_is_not_counted(
    committed: int, length: float, drafted: int
) -> None:
    statistics, brought = TurnStatistics(), result(drafted=10, accepted=10)
    statistics.add(brought, committed)
    assert statistics.mean_acceptance_length == length
    assert (statistics.draft_token_count, statistics.accepted_token_count) == (drafted, min(committed, 10))
    assert sum(statistics.accepted_per_position) == statistics.accepted_token_count
    round_note = note(1, outcome=brought)
    round_note.end(brought, committed)
    assert (round_note.drafted, round_note.accepted) == (drafted, min(committed, 10))
    told = Result()
    told.record_end(turn_pb2.TurnFinished(speculation=_speculation(statistics)))
    assert told.mean_acceptance_length == length


def test_every_kind_of_round_has_its_place() -> None:
    totals, window = Totals(), AcceptanceWindow()
    plain = note(1, outcome=result(0, 0))
    ngram = note(2, outcome=result(3, 3, Source.NGRAM))
    for each, brought in ((plain, result(0, 0)), (ngram, result(3, 3, Source.NGRAM))):
        totals.add_round(each, brought, window)
    for failed in (note(3, outcome=VerifierLostError("")), note(4, outcome=asyncio.CancelledError())):
        totals.add_round(failed, None, window)
    totals.fold()
    assert totals.rounds == {
        ("plain", "plain"): 1,
        ("bonus", "ngram"): 1,
        ("failed", "none"): 1,
        ("cancelled", "none"): 1,
    }


def test_every_round_is_counted_once_however_often_it_is_read() -> None:
    totals, window = Totals(), AcceptanceWindow()
    for number in range(1, 1001):
        totals.add_round(note(number), result(), window)
        if number % 7 == 0:
            totals.fold()
            assert sum(totals.rounds.values()) == totals.round.count == number
    totals.fold()
    assert sum(totals.rounds.values()) == totals.round.count == 1000
    assert totals.generation_tokens == 1000 * note(1).committed


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), max_size=100))
def test_a_window_is_the_last_two_hundred_draft_tokens_in_whole_rounds(rounds: list[tuple[int, int]]) -> None:
    window, seen = AcceptanceWindow(), []
    for drafted, accepted in rounds:
        accepted = min(drafted, accepted)
        seen.append((drafted, accepted))
        share = window.add(drafted, accepted)
        tail: list[tuple[int, int]] = []
        for each in reversed(seen):
            if sum(drafted for drafted, _ in tail) >= 200:
                break
            tail.append(each)
        total = sum(drafted for drafted, _ in tail)
        if total < 200:
            assert share is None
        else:
            assert share == pytest.approx(sum(accepted for _, accepted in tail) / total)


@given(st.lists(st.integers(1, 12), max_size=40))
def test_positions_follow_from_lengths(lengths: list[int]) -> None:
    counted = {length: lengths.count(length) for length in lengths}
    expected = [sum(length > position for length in lengths) for position in range(max(lengths, default=0))]
    assert per_position(counted) == expected


def test_a_turn_is_one_log_line_with_what_a_search_needs_and_nothing_that_was_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    run_turn(Watching(), 2, content="my secret")
    run_turn(Watching(), 1, VerifierLostError("gone"))
    well, badly = caplog.records
    assert (well.levelname, badly.levelname) == ("INFO", "WARNING")
    assert well.__dict__["session_id"] == "s" and well.__dict__["generated_token_count"] == 6
    assert badly.__dict__["finish_reason"] == "VERIFIER_LOST"
    assert "secret" not in caplog.text and "what was said" not in caplog.text


def test_what_goes_wrong_with_looking_is_said_and_does_not_reach_the_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("no spans today")

    monkeypatch.setattr("orchestrator.watching.turn_trace.TurnTrace.end", broken)
    watching = Watching()
    run_turn(watching, 1)
    assert watching.totals.finished == {"max_tokens": 1} and watching.ring.turns_of("s", 1)[0].total is not None
    assert "no spans today" in caplog.text


def test_where_a_sampler_says_no_nothing_is_written_and_no_peer_is_told(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider(sampler=sampling.ALWAYS_OFF)
    monkeypatch.setattr("orchestrator.watching.turn_trace.tracer", provider.get_tracer("test"))
    watching = Watching()
    run_turn(watching, 3)
    (turn,) = watching.ring.turns_of("s", 1)
    assert not spans.get_finished_spans() and not turn.trace_id
    assert not any(each.verify.traceparent for each in turn.shown if each.verify is not None)


def test_a_service_heeds_its_own_sampler_and_a_caller_that_is_not_traced(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = f"00-{7:032x}-{9:016x}"
    assert tracing.server_span_below(f"{traced}-01", "x") is not None
    assert tracing.server_span_below(f"{traced}-00", "x") is None
    for nonsense in ("", "00-", "not a traceparent", f"00-{0:032x}-{0:016x}-01"):
        assert tracing.server_span_below(nonsense, "x") is None
    monkeypatch.setattr(tracing._writer, "provider", TracerProvider(sampler=sampling.ALWAYS_OFF))
    assert tracing.server_span_below(f"{traced}-01", "x") is None


def test_a_message_holds_the_last_turns_that_fit_and_the_last_one_always() -> None:
    def turn(number: int, rounds: int) -> TurnNote:
        made = TurnNote("s", number)
        for each in range(1, rounds + 1):
            made.rounds.add(note(each, prefix="00-"))
        return made

    turns = [turn(1, 900), turn(2, 900), turn(3, 900), turn(4, 10)]
    assert [each.turn for each in fitting_turns(turns)] == [2, 3, 4]
    assert [each.turn for each in fitting_turns([turn(1, 1), turn(2, 3000)])] == [2]
    assert fitting_turns([]) == []
    assert turn_trace_message(turns[0]).ByteSize() < 900 * 500


def test_a_round_with_a_proposal_tells_whose_it_is() -> None:
    turn = TurnNote("s", 1)
    for number, source in enumerate(Source, 1):
        turn.rounds.add(note(number, outcome=result(source=source)))
    turn.rounds.add(note(len(Source) + 1, outcome=result(0)))
    told = [proposer_of(each) for each in turn_trace_message(turn).rounds]
    assert told == [*(source.value for source in Source), ""]


def test_a_failed_round_that_is_kept_keeps_nothing_of_where_it_failed() -> None:
    class Large:
        """A frame of the failure holds it."""

    seen: list[weakref.ref[Large]] = []
    watching = Watching()

    def fail() -> None:
        held = Large()
        seen.append(weakref.ref(held))
        raise VerifierLostError("gone")

    turn = begin(watching)
    made = turn.begin_round(1, 3)
    try:
        fail()
    except VerifierLostError as error:
        made.begin_verify(names.VERIFY).fail(error)
        made.fail(error)
    turn.round_ended(made, None)
    gc.collect()
    assert seen[0]() is None
    assert made.ending is not None and made.ending.kind == "VERIFIER_LOST"


def test_a_refusal_whose_trace_fails_is_still_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the exporter is broken")

    monkeypatch.setattr("orchestrator.watching.watching.write_refused", fail)
    watching = Watching(Detail.TURN)
    watching.refused(VerifierLostError("gone"), "model", Context(), "session")
    assert watching._totals.rejected["VERIFIER_LOST"] == 1
