"""Rounds of the ratio test: a fixed length, and never anything but the draft's own proposal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import Proposal, Source
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.scripted_peers import MODEL, TIMING, Draft, Verifier, drawn, new_note, rounds_over

RULE = SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO)
TOKENS = [1, 2, 3]


def terms(length: int | None = None, source: Source | None = None) -> RoundTerms:
    return RoundTerms(RULE, SpeculationSettings(length, source=source))


class Scene:
    """A session over one draft, whose verifier accepts everything at once."""

    def __init__(self) -> None:
        self.draft, self.verifier = Draft(), Verifier()
        self.verifier.may_answer.set()
        self.rounds: Rounds = rounds_over(self.draft, self.verifier)
        self.session: SessionRounds = self.rounds.open("s")
        self.rounds.begin_turn(self.session, 0, recompute=False)

    def run(self, asked: RoundTerms, room: int = 100) -> asyncio.Task[RoundResult]:
        return asyncio.create_task(self.rounds.run(self.session, TOKENS, asked, room, new_note()))

    async def answered(self, asked: RoundTerms, proposal: Proposal) -> RoundResult:
        """A round whose draft answers at once."""
        running = self.run(asked)
        await self.draft.asked.wait()
        self.draft.asked.clear()
        self.draft.answer(-1, proposal)
        return await running


@pytest.mark.parametrize(
    ("asked", "room", "draft_limit", "length"),
    [(None, 100, 32, 4), (9, 100, 32, 9), (9, 100, 3, 3), (9, 4, 32, 3), (None, 2, 32, 1)],
)
async def test_the_draft_is_asked_for_the_length_that_the_turn_says_or_four_within_all_limits(
    asked: int | None, room: int, draft_limit: int, length: int
) -> None:
    scene = Scene()
    scene.draft.info = replace(MODEL, max_draft_length=draft_limit)
    running = scene.run(terms(asked), room)
    await scene.draft.asked.wait()
    assert scene.draft.lengths == [length]
    scene.draft.answer(-1, drawn(4, 5))
    assert (await running).tokens[-1] == 7


@pytest.mark.parametrize("asked", [terms(0), terms(source=Source.NGRAM)], ids=["off", "n-grams alone"])
async def test_a_turn_without_a_draft_is_decoded_plainly(asked: RoundTerms) -> None:
    scene = Scene()
    result = await scene.run(asked)
    assert (result.tokens, scene.draft.lengths) == ((7,), [])


async def test_a_round_with_room_for_one_token_asks_for_none() -> None:
    scene = Scene()
    assert (await scene.run(terms(), room=1)).tokens == (7,)
    assert not scene.draft.lengths


async def test_the_proposal_is_verified_and_counts_for_its_draft() -> None:
    scene = Scene()
    result = await scene.answered(terms(2), drawn(4, 5, 6))
    assert (result.tokens, result.accepted_count) == ((4, 5, 7), 2), "no more than the length that was asked for"
    side = scene.rounds._parties.drafts.sides[0]
    assert (side.verified_count, side.accepted_count) == (2, 2)
    assert result.awaited == TIMING and result.drafted == [TIMING]


async def test_a_proposal_that_is_no_draw_of_its_distributions_is_left_out() -> None:
    scene = Scene()
    result = await scene.answered(terms(2), Proposal((4, 5)))
    assert result.tokens == (7,) and result.draft_failed


@pytest.mark.parametrize("how", ["late", "failed"])
async def test_a_round_whose_draft_is_late_or_fails_goes_on_without(how: str) -> None:
    scene = Scene()
    running = scene.run(terms())
    await scene.draft.asked.wait()
    request = scene.session.drafting.request
    assert request is not None
    if how == "late":
        request.give_up()
    else:
        scene.draft.sinks[0].fail(PeerError(Code.UNAVAILABLE, "STREAM_LOST", ""))
    result = await running
    assert result.tokens == (7,) and result.draft_failed
    assert (await scene.run(terms())).tokens == (7,), "the draft is left alone"


async def test_a_round_that_is_cancelled_takes_its_request_along() -> None:
    scene = Scene()
    running = scene.run(terms())
    await scene.draft.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    scene.draft.asked.clear()
    scene.draft.answer(0, drawn(4, 5))
    assert scene.session.drafting.request is None
    assert (await scene.answered(terms(2), drawn(8))).tokens == (8, 7)


async def test_no_round_uses_what_was_asked_for_in_another() -> None:
    """A draft's answer of before may be a draw that the target has refused."""
    scene = Scene()
    assert (await scene.answered(terms(4), drawn(4, 5, 6, 9))).tokens == (4, 5, 6, 9, 7)
    running = scene.run(terms(4))
    await scene.draft.asked.wait()
    assert len(scene.draft.sinks) == 2, "it asks again after the same tokens"
    scene.draft.answer(-1, drawn(8))
    assert (await running).tokens == (8, 7)


async def test_rounds_of_the_ratio_test_are_in_no_figures_by_position() -> None:
    scene = Scene()
    await scene.answered(terms(2), drawn(4, 5))
    (side,) = scene.rounds._parties.drafts.sides
    assert side.verified_count == 2 and not side.figures.drafted_lengths


async def test_a_draft_that_only_makes_hints_is_not_asked() -> None:
    scene = Scene()
    scene.session.drafting.sequence.address = scene.draft.address  # its earlier turns got hints
    scene.draft.info = replace(MODEL, hints_only=True)
    result = await scene.run(terms(2))
    assert result.proposal_length == 0 and not scene.draft.sinks and not result.draft_failed
