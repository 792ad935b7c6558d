"""What rounds teach, and whom: many sessions' rounds begin and end while one waits."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from orchestrator.peers.exchange import PeerTiming
from orchestrator.rounds.prompt_time import without_prompts
from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.plan import Overlap, Regime, RoundPlan, load_of
from orchestrator.speculation.planner import Planner
from orchestrator.speculation.proposal import Branch, Proposal
from orchestrator.speculation.session import SpeculationSettings
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.scripted_peers import TIMING, Draft, Verifier, new_note, rounds_over

OFF = RoundTerms(SamplingRule(), SpeculationSettings(0))
PLAIN_ROUNDS = RoundTerms(SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO), SpeculationSettings(0))
"""Plain decoding round by round: a verifier continues no text that the ratio test chooses."""
SYNCHRONOUS = RoundTerms(SamplingRule(), SpeculationSettings(2, Overlap.NONE))
ENUMERATED = RoundTerms(SamplingRule(), SpeculationSettings(2, Overlap.ENUMERATE))
AHEAD = RoundTerms(SamplingRule(), SpeculationSettings(2, Overlap.RUN_AHEAD))

Running = asyncio.Task[RoundResult]


def begun(rounds: Rounds, name: str) -> SessionRounds:
    session = rounds.open(name)
    rounds.begin_turn(session, 0, recompute=False)
    return session


def running(rounds: Rounds, session: SessionRounds, terms: RoundTerms, tokens: list[int]) -> Running:
    return asyncio.create_task(rounds.run(session, tokens, terms, 100, new_note()))


async def until_asked(peer: Draft | Verifier) -> None:
    await peer.asked.wait()
    peer.asked.clear()


class Answering(Verifier):
    """A verifier that answers at once."""

    def __init__(self, address: str = "here", timing: PeerTiming = TIMING) -> None:
        super().__init__(address)
        self.may_answer.set()
        self.timings = itertools.repeat(timing)


# --- times


@pytest.mark.parametrize(
    "timing",
    [
        PeerTiming(0.0, 0.120, 0.120, 0.125, forward_count=2, step_token_count=1, prefill=0.100),
        PeerTiming(0.100, 0.020, 0.120, 0.125, forward_count=2, step_token_count=1, prefill=0.100),
        PeerTiming(0.0, 0.120, 0.120, 0.125, forward_count=6, step_token_count=1, prefill=0.100),
    ],
    ids=["its own prompt", "one that it waited for", "one of several steps"],
)
async def test_a_drafts_step_is_learnt_without_prompts(timing: PeerTiming) -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    round_ = running(rounds, begun(rounds, "s"), SYNCHRONOUS, [1, 2, 3])
    await until_asked(draft)
    draft.sinks[0].take([Branch(0, None, Proposal((4, 5)))])
    draft.sinks[0].finish(timing)
    await round_
    assert rounds.pair.drafting.alone.at(1) == pytest.approx(0.010)
    assert rounds.pair.drafting.around.at() == pytest.approx(0.005)


async def test_steps_for_what_was_committed_since_are_no_tokens_of_the_proposal() -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    round_ = running(rounds, begun(rounds, "s"), SYNCHRONOUS, [1, 2, 3])
    await until_asked(draft)
    draft.sinks[0].take([Branch(0, None, Proposal((4, 5)))])
    draft.sinks[0].finish(PeerTiming(0.0, 0.040, 0.040, 0.045, forward_count=4, step_token_count=1))
    await round_
    assert rounds.pair.drafting.alone.at(1) == pytest.approx(0.010)
    assert rounds.pair.drafting.around.at() == pytest.approx(0.025), "two steps and what surrounds them"


def test_a_step_never_takes_less_than_nothing() -> None:
    forward, around = without_prompts(PeerTiming(0.0, 0.010, 0.010, 0.011, prefill=0.050))
    assert forward == 0 and around == pytest.approx(0.001)


async def test_an_answer_of_the_draft_is_booked_as_the_round_that_asked() -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    first, second = begun(rounds, "first"), begun(rounds, "second")
    rounds.pair.begin_round(2)
    await rounds.run(first, [1, 2, 3], PLAIN_ROUNDS, 100, new_note())
    await rounds.run(second, [1, 2, 3], PLAIN_ROUNDS, 100, new_note())
    enumerated = running(rounds, first, ENUMERATED, [1, 2, 3])
    await until_asked(draft)
    synchronous = running(rounds, second, SYNCHRONOUS, [1, 2, 3])  # the latest round is another one's
    await until_asked(draft)
    draft.sinks[0].finish(TIMING._replace(round_trip=TIMING.forward + 0.5))
    draft.sinks[1].finish(TIMING._replace(round_trip=TIMING.forward + 0.1))
    await asyncio.gather(enumerated, synchronous)
    around = rounds.pair.drafting.around
    assert around.at(rounds.pair.regime(Overlap.ENUMERATE)) == pytest.approx(0.5)
    assert around.at(rounds.pair.regime(Overlap.NONE)) == pytest.approx(0.1)


async def test_a_round_is_booked_under_the_load_that_it_began_with() -> None:
    verifier = Verifier()
    rounds = rounds_over(Draft(), verifier)
    alone = running(rounds, begun(rounds, "alone"), PLAIN_ROUNDS, [1, 2, 3])
    await until_asked(verifier)
    others = [running(rounds, begun(rounds, str(index)), PLAIN_ROUNDS, [1, 2, 3]) for index in range(20)]
    await until_asked(verifier)
    waits = [0.5] + 20 * [0.1]
    verifier.timings = iter([TIMING._replace(round_trip=TIMING.forward + wait) for wait in waits])
    verifier.may_answer.set()
    await asyncio.gather(alone, *others)
    around = rounds.pair.verifiers["here"].costs.around
    assert around.at(Regime(None, load_of(1))) == pytest.approx(0.5)


async def test_a_verification_beside_prompts_shows_a_step_but_neither_a_share_nor_a_wait() -> None:
    verifier = Answering()
    rounds = rounds_over(Draft(), verifier)
    session = begun(rounds, "s")
    usual = PeerTiming(0.0, 0.010, 0.010, 0.012, step_token_count=8)
    crowded = PeerTiming(0.050, 0.050, 0.100, 0.102, step_token_count=400, prefill=0.090)
    for timing in (usual, crowded):
        verifier.timings = itertools.repeat(timing)
        await rounds.run(session, [1, 2, 3], PLAIN_ROUNDS, 100, new_note())
    costs, regime = rounds.pair.verifiers["here"].costs, rounds.pair.regime(None)
    assert costs.share(regime) == 8
    assert costs.around.at(regime) == pytest.approx(0.002)
    assert costs.alone.at(400) > 0.03


async def test_a_run_shows_what_its_steps_take() -> None:
    verifier = Answering(timing=PeerTiming(0.0, 0.060, 0.060, 0.062, forward_count=3, step_token_count=8))
    rounds = rounds_over(Draft(), verifier)
    await rounds.run(begun(rounds, "s"), [1, 2, 3], OFF, 100, new_note())
    costs, regime = rounds.pair.verifiers["here"].costs, rounds.pair.regime(None)
    assert costs.alone.at(8) == pytest.approx(0.020)
    assert costs.share(regime) == 8
    assert not costs.around.count, "nothing lies between the steps of a run"


async def test_a_draft_that_is_still_busy_does_not_rest() -> None:
    draft, verifier = Draft(), Answering()
    rounds = rounds_over(draft, verifier)
    session = begun(rounds, "s")
    rounds.pair.drafting.observe(8, 1, 60.0, 60.0, Regime(Overlap.RUN_AHEAD), beside=True)
    for _ in range(2):  # the second one leaves the draft to what the first has asked
        await rounds.run(session, [1, 2, 3], AHEAD, 100, new_note())
    assert len(draft.sinks) == 1
    assert rounds.pair.verifiers["here"].costs.beside.known
    assert not rounds.pair.verifiers["here"].costs.alone.known


async def test_a_round_is_judged_by_what_it_verified_and_not_by_its_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())  # accepts everything
    session = begun(rounds, "s")
    planner = session.drafting.speculation.planner
    likely = 1 + sum(planner.acceptance.survivals(2))
    judged: list[float] = []
    monkeypatch.setattr(planner, "plan", lambda longest, overlap: RoundPlan(2, rate=100.0))
    monkeypatch.setattr(planner, "observe", lambda tokens, seconds, hit: judged.append(tokens))
    terms = RoundTerms(SamplingRule(), SpeculationSettings())
    first = running(rounds, session, terms, [1, 2, 3])
    await until_asked(draft)
    draft.sinks[0].take([Branch(0, None, Proposal((4, 5)))])
    draft.sinks[0].finish(TIMING)
    assert (await first).tokens == (4, 5, 7)
    assert judged == [pytest.approx(likely)] and likely < 2.5


# --- hits


class Hits:
    """What is reported to `HitRates`."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def observe(self, branches: int, rank: int | None) -> None:
        self.seen.append((branches, rank))


async def with_branches(rounds: Rounds, draft: Draft, terms: RoundTerms = ENUMERATED) -> tuple[SessionRounds, Hits]:
    """A session whose first round has asked for eight branches."""
    hits = Hits()
    rounds.pair.hits = hits  # type: ignore[assignment]
    session = begun(rounds, "s")
    await rounds.run(session, [1, 2, 3], terms, 100, new_note())
    draft.asked.clear()
    assert not hits.seen
    return session, hits


async def test_a_miss_is_one_of_the_branches_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    session, hits = await with_branches(rounds, draft)
    draft.sinks[0].take([Branch(0, 99, Proposal((4, 5)))])  # 7 is what was answered
    draft.sinks[0].finish(TIMING)
    planner = session.drafting.speculation.planner
    monkeypatch.setattr(planner, "fixed", lambda length, overlap: RoundPlan(length, overlap, branch_count=3))
    second = running(rounds, session, ENUMERATED, [1, 2, 3, 7])
    await until_asked(draft)
    draft.sinks[1].finish(TIMING)
    await second
    assert hits.seen == [(8, None)]


async def test_a_branch_that_came_true_is_a_hit_at_its_rank() -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    session, hits = await with_branches(rounds, draft)
    draft.sinks[0].take([Branch(0, 99, Proposal((4, 5))), Branch(0, 7, Proposal((8, 9)))])
    result = await rounds.run(session, [1, 2, 3, 7], ENUMERATED, 100, new_note())
    assert result.tokens == (8, 9, 7) and result.hit
    assert hits.seen == [(8, 1)]


async def test_a_draft_that_fails_has_not_been_wrong() -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    session, hits = await with_branches(rounds, draft)
    second = running(rounds, session, ENUMERATED, [1, 2, 3, 7])
    await asyncio.sleep(0)
    draft.sinks[0].fail(PeerError(Code.UNAVAILABLE, "STREAM_LOST", ""))
    await second
    assert hits.seen == []


async def test_what_comes_rounds_later_says_nothing_of_branches() -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    session, hits = await with_branches(rounds, draft, AHEAD)
    result = await rounds.run(session, [1, 2, 3, 7], AHEAD, 100, new_note())
    assert result.hit is False and hits.seen == []


# --- several verifiers


async def test_each_verifiers_times_are_its_own_and_its_sessions_alone_share_its_budget() -> None:
    quick = Answering("quick", PeerTiming(0.0, 0.01, 0.01, 0.01, step_token_count=8))
    slow = Answering("slow", PeerTiming(0.0, 0.10, 0.10, 0.10, step_token_count=8))
    rounds = rounds_over(Draft(), quick, slow)
    sessions = [begun(rounds, name) for name in "ab"]
    for session in sessions:
        await rounds.run(session, [1, 2, 3], PLAIN_ROUNDS, 100, new_note())
    known, pair = rounds.pair.verifiers, rounds.pair
    assert known["quick"].costs.at(1, known["quick"].regime(None)) == pytest.approx(0.01)
    assert known["slow"].costs.at(1, known["slow"].regime(None)) == pytest.approx(0.10)
    assert [known[address].session_count for address in ("quick", "slow")] == [1, 1]
    assert known["slow"].budget.allowed(sessions[1], [0.5, 0.01]) == 2, "alone where it lives, it is not rationed"
    assert pair.session_count == 2, "but they share the draft"


async def test_a_session_that_moves_counts_where_it_lives() -> None:
    gone, other = Verifier("gone"), Answering("other", PeerTiming(0.0, 0.10, 0.10, 0.10, step_token_count=8))
    gone.is_away = True
    gone.may_answer.set()
    rounds = rounds_over(Draft(), gone, other)
    session, tokens = begun(rounds, "s"), [1, 2, 3]
    tokens += (await rounds.run(session, tokens, PLAIN_ROUNDS, 100, new_note())).tokens
    known = rounds.pair.verifiers
    assert known["other"].costs.alone.known and not known["gone"].costs.alone.known
    tokens += (await rounds.run(session, tokens, PLAIN_ROUNDS, 100, new_note())).tokens
    assert (known["gone"].budget.session_count, known["other"].budget.session_count) == (0, 1)
    rounds.end_turn(session, tokens, 2)
    assert rounds.pair.running_count == 0


# --- what a turn begins with


async def test_what_the_draft_did_in_the_last_turn_is_no_part_of_the_next() -> None:
    draft = Draft()
    rounds = rounds_over(draft, Answering())
    session = begun(rounds, "s")
    tokens = [1, 2, 3]
    for _ in range(2):
        tokens += (await rounds.run(session, tokens, AHEAD, 100, new_note())).tokens
    rounds.end_turn(session, tokens, 2)
    draft.sinks[0].finish(TIMING)
    draft.sinks[1].fail(PeerError(Code.INTERNAL, "BROKEN", ""))
    rounds.begin_turn(session, len(tokens), recompute=False)
    result = await rounds.run(session, tokens, PLAIN_ROUNDS, 100, new_note())
    assert result.drafted == [] and not result.draft_failed


def test_a_round_of_the_common_way_shows_what_it_brings_though_others_change_it_meanwhile() -> None:
    pair = PairKnowledge()
    for _ in range(100):
        pair.begin_round(8)
    planner = Planner(pair)
    for _ in range(40):
        pair.common.way = Overlap.NONE
        planner.begin(RoundPlan(4, Overlap.NONE, rate=80.0))
        pair.common.way = Overlap.ENUMERATE
        planner.observe(4, 0.1)  # half of the forecast
    assert pair.corrections.factor(pair.regime(Overlap.NONE)) < 0.8
