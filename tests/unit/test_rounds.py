"""Rounds over peers whose answers come when the test says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import INVALID_SPAN

from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.proposal import Branch, Proposal
from orchestrator.speculation.session import SpeculationSettings
from slipstream.sampling.rule import SamplingRule
from slipstream.telemetry import tracing
from tests.scripted_peers import TIMING, Draft, Verifier, rounds_over

SYNCHRONOUS = RoundTerms(SamplingRule(), SpeculationSettings(2, Overlap.NONE))
OVERLAPPED = RoundTerms(SamplingRule(), SpeculationSettings(2, Overlap.ENUMERATE))


class OpenSpans(SpanProcessor):
    """How many spans have begun below ``turn`` and not ended."""

    def __init__(self) -> None:
        provider = TracerProvider()
        self.tracer = provider.get_tracer("test")
        self.turn = self.tracer.start_span("turn")
        self.count = 0
        provider.add_span_processor(self)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.count += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.count -= 1


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> OpenSpans:
    spans = OpenSpans()
    monkeypatch.setattr(tracing, "tracer", spans.tracer)
    return spans


@pytest.mark.parametrize("terms", [SYNCHRONOUS, OVERLAPPED], ids=["waiting for the draft", "waiting for the verifier"])
async def test_a_cancelled_round_leaves_nothing_open_and_its_session_goes_on(
    terms: RoundTerms, spans: OpenSpans
) -> None:
    draft, verifier = Draft(), Verifier()
    rounds = rounds_over(draft, verifier)
    session, tokens = rounds.open("s"), [1, 2, 3]
    rounds.begin_turn(session, 0, recompute=False)
    running = asyncio.create_task(rounds.run(session, tokens, terms, 10, spans.turn))
    await (draft if terms is SYNCHRONOUS else verifier).asked.wait()
    assert spans.count > 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert spans.count == 0
    rounds.end_turn(session, tokens, 0)

    verifier.may_answer.set()
    draft.sinks[-1].finish(TIMING)  # what nobody waits for any more comes all the same
    rounds.begin_turn(session, 2, recompute=False)
    result = await rounds.run(session, [1, 2, 9], RoundTerms(SamplingRule(), SpeculationSettings(0)), 10, spans.turn)
    assert result.tokens == (7,) and spans.count == 0
    assert verifier.positions[-1].base_length == 0, "nothing says that the verifier holds any of it"


async def test_a_round_that_is_not_traced_begins_no_trace_of_its_own(spans: OpenSpans) -> None:
    draft, verifier = Draft(), Verifier()
    rounds = rounds_over(draft, verifier)
    session = rounds.open("s")
    rounds.begin_turn(session, 0, recompute=False)
    running = asyncio.create_task(rounds.run(session, [1, 2, 3], OVERLAPPED, 10, INVALID_SPAN))
    await verifier.asked.wait()
    assert draft.sinks and spans.count == 0
    verifier.may_answer.set()
    await running


async def test_an_undone_turn_leaves_what_was_shared_and_a_recomputed_one_uses_no_cache() -> None:
    draft, verifier = Draft(), Verifier()
    verifier.may_answer.set()
    rounds = rounds_over(draft, verifier)
    session, tokens = rounds.open("s"), [1, 2, 3]
    off = RoundTerms(SamplingRule(), SpeculationSettings(0))
    rounds.begin_turn(session, 0, recompute=False)
    tokens += (await rounds.run(session, tokens, off, 10, INVALID_SPAN)).tokens
    rounds.end_turn(session, tokens, 1)
    edited = [1, 2, 8, 8, 8]
    rounds.begin_turn(session, 2, recompute=False)
    await rounds.run(session, edited, off, 10, INVALID_SPAN)
    rounds.end_turn(session, edited, 0)
    rounds.begin_turn(session, 4, recompute=False)
    await rounds.run(session, [*tokens, 5], off, 10, INVALID_SPAN)
    rounds.end_turn(session, [*tokens, 5], 1)
    rounds.begin_turn(session, 5, recompute=True)
    await rounds.run(session, [*tokens, 5, 6], off, 10, INVALID_SPAN)
    assert [position.base_length for position in verifier.positions] == [0, 2, 2, 0]


async def test_what_the_draft_says_is_verified_and_ready_to_commit() -> None:
    draft, verifier = Draft(), Verifier()
    verifier.may_answer.set()
    rounds = rounds_over(draft, verifier)
    session = rounds.open("s")
    rounds.begin_turn(session, 0, recompute=False)
    running = asyncio.create_task(rounds.run(session, [1, 2, 3], SYNCHRONOUS, 10, INVALID_SPAN))
    await draft.asked.wait()
    draft.sinks[0].take([Branch(0, None, Proposal((4, 5)))])
    draft.sinks[0].finish(TIMING)
    result = await running
    assert (result.tokens, result.accepted_count, result.asked) == ((4, 5, 7), 2, True)
