"""Rounds over peers whose answers come when the test says so."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.scripted_peers import TIMING, Draft, Verifier, drawn, new_note, rounds_over

RATIO = RoundTerms(SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO), SpeculationSettings(2))
ADAPTIVE = RoundTerms(SamplingRule(), SpeculationSettings())


@pytest.mark.parametrize("terms", [RATIO, ADAPTIVE], ids=["waiting for the draft", "waiting for the verifier"])
async def test_a_cancelled_round_leaves_nothing_open_and_its_session_goes_on(terms: RoundTerms) -> None:
    draft, verifier = Draft(), Verifier()
    rounds = rounds_over(draft, verifier)
    session, tokens, note = rounds.open("s"), [1, 2, 3], new_note()
    rounds.begin_turn(session, 0, recompute=False)
    running = asyncio.create_task(rounds.run(session, tokens, terms, 10, note))
    await (draft if terms is RATIO else verifier).asked.wait()
    asked = [*note.proposes, *([note.verify] if note.verify else [])]
    assert asked and all(exchange.ended is None for exchange in asked)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert all(exchange.ended is not None and (exchange.left or exchange.ending is not None) for exchange in asked)
    rounds.end_turn(session, 0)

    verifier.may_answer.set()
    for sink in draft.sinks:
        sink.finish(NOTHING_PROPOSED, TIMING)  # an answer that no round waits for any more still comes
    rounds.begin_turn(session, 2, recompute=False)
    off = RoundTerms(SamplingRule(), SpeculationSettings(0))
    result = await rounds.run(session, [1, 2, 9], off, 10, new_note(2))
    assert result.tokens == (7,)
    assert verifier.positions[-1].base_length == 0, "nothing says that the verifier holds any of it"


async def test_peers_are_told_of_a_trace_only_where_they_shall_add_to_it() -> None:
    draft, verifier = Draft(), Verifier()
    verifier.may_answer.set()
    rounds = rounds_over(draft, verifier)
    prefix = f"00-{7:032x}-"
    traced, quiet = new_note(trace_prefix=prefix), new_note(2)
    for note in (traced, quiet):
        session = rounds.open("s")
        rounds.begin_turn(session, 0, recompute=False)
        running = asyncio.create_task(rounds.run(session, [1, 2, 3], RATIO, 10, note))
        await draft.asked.wait()
        draft.asked.clear()
        draft.answer(-1, drawn(4, 5))
        await running
        assert note.verify is not None and note.proposes
    exchanges = [traced.verify, *traced.proposes]
    assert [e.traceparent for e in exchanges if e] == [f"{prefix}{e.span_id:016x}-01" for e in exchanges if e]
    assert quiet.verify is not None and not quiet.verify.traceparent
    assert not any(exchange.traceparent for exchange in quiet.proposes)


async def test_an_undone_turn_leaves_what_was_shared_and_a_recomputed_one_uses_no_cache() -> None:
    draft, verifier = Draft(), Verifier()
    verifier.may_answer.set()
    rounds = rounds_over(draft, verifier)
    session, tokens = rounds.open("s"), [1, 2, 3]
    off = RoundTerms(SamplingRule(), SpeculationSettings(0))
    rounds.begin_turn(session, 0, recompute=False)
    tokens += (await rounds.run(session, tokens, off, 10, new_note())).tokens
    rounds.end_turn(session, 1)
    edited = [1, 2, 8, 8, 8]
    rounds.begin_turn(session, 2, recompute=False)
    await rounds.run(session, edited, off, 10, new_note())
    rounds.end_turn(session, 0)
    rounds.begin_turn(session, 4, recompute=False)
    await rounds.run(session, [*tokens, 5], off, 10, new_note())
    rounds.end_turn(session, 1)
    rounds.begin_turn(session, 5, recompute=True)
    await rounds.run(session, [*tokens, 5, 6], off, 10, new_note())
    assert [position.base_length for position in verifier.positions] == [0, 2, 2, 0]
