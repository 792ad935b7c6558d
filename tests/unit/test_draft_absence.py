"""A draft that is away costs a pair one deadline: who waits learns of it at once, and one at a time
sees if it is back."""

from __future__ import annotations

import asyncio

from orchestrator.rounds.result import RoundResult
from orchestrator.rounds.rounds import Rounds
from orchestrator.rounds.session import SessionRounds
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import NOTHING_PROPOSED
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.clock import Clock
from tests.scripted_peers import TIMING, Draft, Verifier, drawn, new_note, rounds_over

SYNCHRONOUS = RoundTerms(SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO), SpeculationSettings(4))


class Sessions:
    """Some sessions over one draft, whose breaker has a clock of the test's."""

    def __init__(self, count: int) -> None:
        self.draft, self.verifier, self.clock = Draft(), Verifier(), Clock()
        self.verifier.may_answer.set()
        self.rounds: Rounds = rounds_over(self.draft, self.verifier)
        self.breaker = self.rounds._parties.drafts.sides[0]._breaker
        self.breaker._clock = self.clock
        self.all: list[SessionRounds] = []
        self.tokens = [1, 2, 3]
        for index in range(count):
            session = self.rounds.open(str(index))
            session.drafting.breaker._clock = self.clock
            self.rounds.begin_turn(session, 0, recompute=False)
            self.all.append(session)

    def begin(self) -> list[asyncio.Task[RoundResult]]:
        """A round of each, after one token more."""
        self.tokens = [*self.tokens, 9]
        return [
            asyncio.create_task(self.rounds.run(each, self.tokens, SYNCHRONOUS, 10, new_note())) for each in self.all
        ]

    async def run(self) -> list[RoundResult]:
        """Run a round of each, with no draft to answer."""
        return await asyncio.wait_for(asyncio.gather(*self.begin()), 60)

    async def asked(self, count: int) -> None:
        """Wait for that many requests in all."""
        async with asyncio.timeout(60):
            while len(self.draft.sinks) < count:
                self.draft.asked.clear()
                await self.draft.asked.wait()

    def answer(self, index: int) -> None:
        """One request."""
        self.draft.answer(index, drawn(4, 5))


async def test_the_first_round_that_waited_too_long_ends_the_wait_of_all() -> None:
    sessions = Sessions(8)
    running = sessions.begin()
    await sessions.asked(8)
    first = sessions.all[3].drafting.request
    assert first is not None
    first.give_up()
    for result in await asyncio.wait_for(asyncio.gather(*running), 60):
        assert result.tokens == (7,)
    assert sessions.rounds._parties.drafts.sides[0].fallbacks["DRAFT_LATE"] == 8


async def test_one_session_probes_after_each_pause_and_none_waits_for_the_draft() -> None:
    sessions = Sessions(8)
    running = sessions.begin()
    await sessions.asked(8)
    for sink in sessions.draft.sinks:
        sink.fail(PeerError(Code.UNAVAILABLE, "STREAM_LOST", ""))
    await asyncio.gather(*running)
    for probes in (1, 2, 3):
        before = len(sessions.draft.sinks)
        assert all(result.tokens == (7,) for result in await sessions.run())
        assert len(sessions.draft.sinks) == before, "it is left alone"
        sessions.clock.now += 10
        for _ in range(3):
            assert all(result.tokens == (7,) for result in await sessions.run())
        assert len(sessions.draft.sinks) == 8 + probes
    sessions.answer(-1)
    assert sessions.breaker.is_closed
    before, running = len(sessions.draft.sinks), sessions.begin()
    await sessions.asked(before + 8)
    for index in range(before, before + 8):
        sessions.answer(index)
    assert [result.tokens for result in await asyncio.gather(*running)] == [(4, 5, 7)] * 8


async def test_a_draft_that_answers_others_is_late_for_one_session_alone() -> None:
    sessions = Sessions(2)
    slow, quick = sessions.all
    running = sessions.begin()
    await sessions.asked(2)
    sessions.answer(1)
    late = slow.drafting.request
    assert late is not None
    late.give_up()
    assert [result.tokens for result in await asyncio.gather(*running)] == [(7,), (4, 5, 7)]
    assert sessions.breaker.is_closed and quick.drafting.breaker.is_closed
    running = sessions.begin()
    await sessions.asked(3)
    assert (await running[0]).tokens == (7,), "it does not ask"
    sessions.answer(2)
    assert (await running[1]).tokens == (4, 5, 7)
    sessions.clock.now += 1
    running = sessions.begin()
    await sessions.asked(5)
    assert (await running[0]).tokens == (7,), "it asks, and does not wait"
    for index in (3, 4):
        sessions.answer(index)
    await running[1]
    assert slow.drafting.breaker.is_closed


async def test_probes_that_a_wedged_draft_never_answers_do_not_pile_up() -> None:
    sessions = Sessions(1)
    running = sessions.begin()
    await sessions.asked(1)
    sessions.draft.sinks[0].fail(PeerError(Code.UNAVAILABLE, "STREAM_LOST", ""))
    await asyncio.gather(*running)
    for _ in range(40):
        sessions.clock.now += 10
        await sessions.run()
    assert len(sessions.draft.sinks) == 41
    assert len(sessions.draft.withdrawn) == 40 - 16


async def lost(sessions: Sessions) -> None:
    """The draft goes away in a round of all."""
    before, running = len(sessions.draft.sinks), sessions.begin()
    await sessions.asked(before + len(sessions.all))
    for sink in sessions.draft.sinks[before:]:
        sink.fail(PeerError(Code.UNAVAILABLE, "STREAM_LOST", ""))
    await asyncio.gather(*running)
    assert not sessions.breaker.is_closed


async def probed(sessions: Sessions) -> None:
    """It is asked whether it is back."""
    sessions.clock.now += 10
    before = len(sessions.draft.sinks)
    await sessions.run()
    assert len(sessions.draft.sinks) == before + 1


async def test_a_draft_that_was_started_again_is_told_what_it_has_forgotten() -> None:
    """By the probe itself: the session's handle is of the draft that was killed."""
    sessions = Sessions(1)
    running = sessions.begin()
    await sessions.asked(1)
    sessions.answer(0)
    await asyncio.gather(*running)
    sequence = sessions.all[0].drafting.sequence
    sequence.is_open, old = True, sequence.handle
    await lost(sessions)
    await probed(sessions)
    sessions.draft.sinks[-1].fail(PeerError(Code.NOT_FOUND, "UNKNOWN_HANDLE", ""))
    assert sequence.handle != old and not sequence.is_open
    sessions.answer(-1)
    assert sessions.breaker.is_closed


async def test_any_answer_to_a_probe_shows_the_draft_unless_it_says_that_it_is_away() -> None:
    sessions = Sessions(1)
    await lost(sessions)
    for reason, code, is_back in (
        ("STREAM_LOST", Code.UNAVAILABLE, False),
        ("QUEUE_FULL", Code.RESOURCE_EXHAUSTED, False),
        ("SEQUENCE_LIMIT", Code.RESOURCE_EXHAUSTED, True),
    ):
        await probed(sessions)
        sessions.draft.sinks[-1].fail(PeerError(code, reason, ""))
        assert sessions.breaker.is_closed == is_back


async def test_a_draft_that_answers_probes_and_nothing_else_is_asked_ever_more_seldom() -> None:
    """A token comes in time where sixteen do not: what a probe shows is that it is there."""
    sessions = Sessions(1)
    pauses = []
    for _ in range(4):
        running = sessions.begin()
        await asyncio.sleep(0)
        late = sessions.all[0].drafting.request
        assert late is not None and not late.done.is_set()
        late.give_up()
        await asyncio.gather(*running)
        pauses.append(sessions.breaker._next_probe - sessions.clock.now)
        await probed(sessions)
        sessions.draft.sinks[-1].finish(NOTHING_PROPOSED, TIMING)
        assert sessions.breaker.is_closed
    assert pauses[0] < pauses[1] < pauses[2] and pauses[3] > 3
    running = sessions.begin()
    await asyncio.sleep(0)
    sessions.draft.sinks[-1].finish(NOTHING_PROPOSED, TIMING)
    await asyncio.gather(*running)
    await lost(sessions)
    assert sessions.breaker._next_probe - sessions.clock.now < 1, "it was well in between"
