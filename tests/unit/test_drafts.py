"""Several drafts share the sessions of one target; one that is away is left, and its sessions draft
elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import Overlap
from orchestrator.speculation.proposal import Branch, Proposal
from orchestrator.speculation.session import SessionSpeculation, SpeculationSettings
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.clock import Clock
from tests.scripted_peers import MODEL, TIMING, Draft, Verifier, new_note, rounds_over, side_of

SYNCHRONOUS = RoundTerms(SamplingRule(), SpeculationSettings(4, Overlap.NONE))
RATIO = replace(SYNCHRONOUS, rule=SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO))
OFF = RoundTerms(SamplingRule(), SpeculationSettings(0))
AWAY = PeerError(Code.UNAVAILABLE, "STREAM_LOST", "")


class Named(Draft):
    """A draft at an address, that answers at once unless it is away, or its answers are lost on
    their way."""

    def __init__(self, address: str, info: ModelInfo = MODEL) -> None:
        super().__init__()
        self.address, self.info = address, info
        self.is_away = self.is_unheard = False
        self.asked_for: list[str] = []
        self.closed: list[str] = []

    def propose(self, sequence: PeerSequence, *rest: object):  # type: ignore[no-untyped-def]
        self.asked_for.append(sequence.handle)
        withdraw = super().propose(sequence, *rest)
        if self.is_unheard:
            return withdraw
        asyncio.get_running_loop().call_soon(self._answer, self.sinks[-1])
        return withdraw

    def _answer(self, sink) -> None:  # type: ignore[no-untyped-def]
        if self.is_away:
            sink.fail(AWAY)
        else:
            sink.take([Branch(0, None, Proposal((4, 5)))])
            sink.finish(TIMING)

    def close_sequence(self, sequence: PeerSequence) -> None:
        self.closed.append(sequence.handle)


class Scene:
    """Two drafts or more, and sessions whose breakers have a clock of the test's."""

    def __init__(self, *drafts: Named) -> None:
        self.clock, self.verifier = Clock(), Verifier()
        self.verifier.may_answer.set()
        self.rounds = rounds_over(drafts, self.verifier)
        self.drafts: Drafts = self.rounds._parties.drafts
        for side in self.drafts.sides:
            side._breaker._clock = self.clock
        self.tokens: dict[str, list[int]] = {}

    def begun(self, name: str) -> SessionRounds:
        session = self.rounds.open(name)
        self.rounds.begin_turn(session, 0, recompute=False)
        self.tokens[name] = [1, 2, 3]
        return session

    async def run(self, session: SessionRounds, terms: RoundTerms = SYNCHRONOUS) -> RoundResult:
        tokens = self.tokens[session.id]
        result = await asyncio.wait_for(self.rounds.run(session, tokens, terms, 100, new_note()), 60)
        tokens += result.tokens
        return result

    def end(self, session: SessionRounds) -> None:
        self.rounds.end_turn(session, self.tokens[session.id], 1)
        self.rounds.begin_turn(session, len(self.tokens[session.id]), recompute=False)

    def counts(self) -> list[int]:
        return [side.session_count for side in self.drafts.sides]

    def home(self, session: SessionRounds) -> str | None:
        return session.drafting.sequence.address


async def test_new_sessions_go_where_the_fewest_are_and_stay_there() -> None:
    scene = Scene(Named("a"), Named("b"))
    sessions = [scene.begun(str(index)) for index in range(6)]
    homes = []
    for session in sessions:
        await scene.run(session)
        homes.append(scene.home(session))
    assert scene.counts() == [3, 3]
    for session in sessions:
        for _ in range(3):
            await scene.run(session)
        scene.end(session)
        await scene.run(session)
    assert [scene.home(session) for session in sessions] == homes
    for session in sessions:
        scene.rounds.release(session)
        scene.rounds.release(session)
    assert scene.counts() == [0, 0]


async def test_a_session_that_does_not_draft_lives_on_no_draft() -> None:
    scene = Scene(Named("a"), Named("b"))
    await scene.run(scene.begun("plain"), OFF)
    assert scene.counts() == [0, 0]


async def test_sessions_of_a_draft_that_is_away_draft_with_another_in_their_next_round() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    sessions = [scene.begun(str(index)) for index in range(4)]
    for session in sessions:
        assert (await scene.run(session)).tokens == (4, 5, 7)
    old = [session.drafting.sequence.handle for session in sessions if scene.home(session) == "a"]
    a.is_away = True
    first, *others = sessions
    assert (await scene.run(first)).tokens == (7,), "the first to find out goes without in this round"
    for session in (first, *others):
        result = await scene.run(session)
        assert result.tokens == (4, 5, 7) and scene.home(session) == "b"
    assert scene.counts() == [0, 4] and scene.drafts.move_count == 2
    assert sorted(a.closed) == sorted(old), "it may be well, and only its stream was lost"
    assert first.drafting.sequence.handle not in old and first.drafting.sequence.known_length > 3


async def test_one_that_everybody_has_left_is_probed_and_sessions_spread_again() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    sessions = [scene.begun(str(index)) for index in range(4)]
    for session in sessions:
        await scene.run(session)
    a.is_away = True
    for session in [*sessions, *sessions]:
        await scene.run(session)
    assert scene.counts() == [0, 4]
    before = len(a.sinks)
    for session in sessions:
        await scene.run(session)
    assert len(a.sinks) == before, "it is left alone"
    for _ in range(2):
        scene.clock.now += 10
        for session in sessions:
            assert (await scene.run(session)).tokens == (4, 5, 7), "no round waits for the probe"
    assert len(a.sinks) == before + 2
    a.is_away = False
    scene.clock.now += 10
    await scene.run(sessions[0])
    assert len(a.sinks) == before + 3 and scene.drafts.sides[0].is_well
    assert not scene.drafts.sides[0]._visitors and len(a.closed) == 2 + 3, "no probe's handle is left open"
    assert scene.counts() == [0, 4], "in the middle of their turns sessions stay"
    for session in sessions:
        scene.end(session)
        await scene.run(session)
    assert scene.counts() == [2, 2] or scene.counts() == [1, 3]
    new = scene.begun("new")
    await scene.run(new)
    assert scene.home(new) == "a"


async def test_no_probe_whose_answer_was_lost_leaves_a_handle_open() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun("s")
    await scene.run(session)
    a.is_away = True
    for _ in range(2):
        await scene.run(session)
    assert scene.home(session) == "b"
    a.is_away, a.is_unheard = False, True
    before = len(a.sinks)
    for _ in range(3):
        scene.clock.now += 10
        await scene.run(session)
    assert len(a.sinks) == before + 3 and not a.closed[1:]
    a.is_unheard = False
    scene.clock.now += 10
    await scene.run(session)
    assert scene.drafts.sides[0].is_well and sorted(a.closed) == sorted(set(a.asked_for))
    assert set(a.sinks[before:-1]) <= set(a.withdrawn), "nothing is waited for of those that are closed"
    assert not scene.drafts.sides[0]._visitors


async def test_under_the_ratio_test_a_session_stays_with_its_draft() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun("s")
    await scene.run(session, RATIO)
    assert scene.home(session) == "a"
    a.is_away = True
    for _ in range(3):
        assert (await scene.run(session, RATIO)).tokens == (7,)
    assert scene.home(session) == "a" and not b.sinks


async def test_a_draft_with_another_tokenizer_gets_no_session_and_what_answers_for_it_is_known() -> None:
    stranger, fitting = (
        Named("a", replace(MODEL, tokenizer_fingerprint="another")),
        Named("b", replace(MODEL, name="b")),
    )
    scene = Scene(stranger, fitting)
    sessions = [scene.begun(str(index)) for index in range(3)]
    for session in sessions:
        assert (await scene.run(session)).tokens == (4, 5, 7)
    assert scene.counts() == [0, 3] and not stranger.sinks
    assert scene.drafts.info == fitting.info and scene.drafts.mismatched is None
    alone = Scene(stranger)
    assert alone.drafts.mismatched == stranger.info
    assert (await alone.run(alone.begun("s"))).tokens == (7,)


async def test_one_that_comes_back_as_a_stranger_is_left() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun("s")
    await scene.run(session)
    a._answer = lambda sink: sink.fail(PeerError(Code.FAILED_PRECONDITION, "TOKENIZER_MISMATCH", ""))  # type: ignore[method-assign]
    assert (await scene.run(session)).tokens == (7,)
    assert (await scene.run(session)).tokens == (4, 5, 7) and scene.home(session) == "b"


async def test_a_draft_may_be_added_and_left_while_turns_run() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a)
    sessions = [scene.begun(str(index)) for index in range(4)]
    for session in sessions:
        await scene.run(session)
    scene.drafts.add(side_of(b, PairKnowledge()))
    for session in sessions:
        await scene.run(session)
    assert scene.counts() == [4, 0]
    new = scene.begun("new")
    await scene.run(new)
    assert scene.home(new) == "b"
    scene.drafts.retire("a")
    assert not scene.drafts.remove_retired()
    for session in sessions:
        assert (await scene.run(session)).tokens == (4, 5, 7)
    assert scene.drafts.remove_retired() == ["a"] and scene.counts() == [5]


async def test_an_answer_of_the_draft_that_a_session_has_left_is_nothing_to_it() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun("s")
    await scene.run(session)
    old = session.drafting.sequence
    a._answer = lambda sink: None  # type: ignore[method-assign]
    running = asyncio.create_task(scene.run(session))
    a.asked.clear()
    await a.asked.wait()
    late = a.sinks[-1]
    request = session.drafting.request
    assert request is not None
    request.give_up()
    await running
    await scene.run(session)
    asked, handle = len(a.sinks), session.drafting.sequence.handle
    known = session.drafting.sequence.known_length
    late.fail(PeerError(Code.NOT_FOUND, "UNKNOWN_HANDLE", ""))
    late.take([Branch(0, None, Proposal((99, 99)))])
    late.finish(TIMING)
    assert len(a.sinks) == asked, "no code would close what it would open"
    now = session.drafting.sequence
    assert now is not old and (now.handle, now.known_length) == (handle, known)
    assert (await scene.run(session)).tokens == (4, 5, 7)


# --- what is learnt of each


async def test_each_drafts_tokens_are_counted_and_its_sessions_alone_share_it() -> None:
    scene = Scene(Named("a"), Named("b"))
    one, two = scene.begun("one"), scene.begun("two")
    for session in (one, two, one):
        await scene.run(session)
    a, b = scene.drafts.sides
    assert [side.verified_count for side in (a, b)] == [4, 2] == [side.accepted_count for side in (a, b)]
    assert a.pair is not b.pair and [side.pair.session_count for side in (a, b)] == [1, 1]
    assert a.pair.verifiers is b.pair.verifiers
    scene.end(one)
    assert [side.pair.running_count for side in (a, b)] == [0, 1]


def test_drafts_of_equal_weights_share_acceptance_and_not_speed() -> None:
    first = PairKnowledge()
    twin, other = first.with_another_draft(first), first.with_another_draft()
    for _ in range(50):
        first.acceptances[0].observe(4, 0)
    assert twin.acceptance.mean == first.acceptance.mean < 0.2 < other.acceptance.mean
    assert twin.drafting is not first.drafting
    assert twin.verifiers is other.verifiers is first.verifiers


def test_a_session_restarts_at_another_model_and_continues_at_a_twin() -> None:
    first = PairKnowledge()
    speculation = SessionSpeculation(first)
    for _ in range(50):
        speculation.planner.acceptance.observe(4, 0)
    own = speculation.planner.acceptance.mean
    speculation.draft_with(first.with_another_draft(first))
    assert speculation.planner.acceptance.mean == own
    speculation.draft_with(first.with_another_draft())
    assert speculation.planner.acceptance.mean == pytest.approx(0.7)


def test_what_was_kept_of_a_draft_that_comes_later_leaves_the_verifiers_as_they_are() -> None:
    kept, first = PairKnowledge(), PairKnowledge()
    for _ in range(50):
        kept.acceptances[0].observe(4, 0)
        kept.ngram_acceptance[0].observe(4, 0)
    known = first.verifiers["here"].costs
    other = first.with_another_draft()
    before = first.ngram_acceptance[0].mean
    other.take_of_the_draft(kept.state())
    assert other.acceptance.mean < 0.2 < first.acceptance.mean
    assert other.ngram_acceptance is first.ngram_acceptance and first.ngram_acceptance[0].mean == before
    assert first.verifiers["here"].costs is known
