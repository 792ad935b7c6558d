"""Several drafts share the sessions of one target; one that is away is left, and its sessions draft
elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.sequence import PeerSequence
from orchestrator.rounds.draft_request import SessionDrafting, draftings_of
from orchestrator.rounds.drafts import Drafts
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import Acceptance, SamplingRule
from tests.clock import Clock
from tests.scripted_peers import MODEL, TIMING, Draft, drawn, new_note, side_of

RULE = SamplingRule(temperature=1.0, acceptance=Acceptance.RATIO)
PROPOSED = (4, 5)
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
            sink.finish(drawn(4, 5), TIMING)

    def close_sequence(self, sequence: PeerSequence) -> None:
        self.closed.append(sequence.handle)


class Scene:
    """Two drafts or more, and sessions whose breakers have a clock of the test's."""

    def __init__(self, *drafts: Named) -> None:
        self.clock = Clock()
        self.drafts = Drafts(map(side_of, drafts))
        for side in self.drafts.sides:
            side._breaker._clock = self.clock
        self.tokens: dict[SessionDrafting, list[int]] = {}
        self.begins: set[SessionDrafting] = set()
        """Sessions whose turns have just begun."""

    def begun(self) -> SessionDrafting:
        session = SessionDrafting()
        self.tokens[session] = [1, 2, 3]
        self.begins.add(session)
        return session

    async def draft(self, session: SessionDrafting, *, stays: bool = False) -> tuple[int, ...]:
        """Return the tokens that the session's draft proposes, if it proposes any."""
        side = self.drafts.home(session, begins_turn=session in self.begins, stays=stays)
        self.begins.discard(session)
        request = None if side is None else side.ask(session, self.tokens[session], RULE, 4, new_note())
        if side is None or request is None:
            return ()
        await asyncio.wait_for(side.wait(request), 60)
        proposed = () if request.proposal is None else request.proposal.tokens
        self.tokens[session] = [*self.tokens[session], *proposed, 7]
        return proposed

    def end(self, session: SessionDrafting) -> None:
        session.begin_turn(len(self.tokens[session]))
        self.begins.add(session)

    def counts(self) -> list[int]:
        return [side.session_count for side in self.drafts.sides]

    def home(self, session: SessionDrafting) -> str | None:
        return session.sequence.address


async def test_new_sessions_go_where_the_fewest_are_and_stay_there() -> None:
    scene = Scene(Named("a"), Named("b"))
    sessions = [scene.begun() for _ in range(6)]
    homes = []
    for session in sessions:
        await scene.draft(session)
        homes.append(scene.home(session))
    assert scene.counts() == [3, 3]
    for session in sessions:
        for _ in range(3):
            await scene.draft(session)
        scene.end(session)
        await scene.draft(session)
    assert [scene.home(session) for session in sessions] == homes
    for session in sessions:
        scene.drafts.release(session)
        scene.drafts.release(session)
    assert scene.counts() == [0, 0]


async def test_sessions_of_a_draft_that_is_away_draft_with_another_in_their_next_round() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    sessions = [scene.begun() for _ in range(4)]
    for session in sessions:
        assert await scene.draft(session) == PROPOSED
    old = [session.sequence.handle for session in sessions if scene.home(session) == "a"]
    a.is_away = True
    first, *others = sessions
    assert await scene.draft(first) == (), "the first to find out goes without in this round"
    for session in (first, *others):
        assert await scene.draft(session) == PROPOSED and scene.home(session) == "b"
    assert scene.counts() == [0, 4] and scene.drafts.move_count == 2
    assert sorted(a.closed) == sorted(old), "it may be well, and only its stream was lost"
    assert first.sequence.handle not in old and first.sequence.known_length > 3


async def test_one_that_everybody_has_left_is_probed_and_sessions_spread_again() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    sessions = [scene.begun() for _ in range(4)]
    for session in sessions:
        await scene.draft(session)
    a.is_away = True
    for session in [*sessions, *sessions]:
        await scene.draft(session)
    assert scene.counts() == [0, 4]
    before = len(a.sinks)
    for session in sessions:
        await scene.draft(session)
    assert len(a.sinks) == before, "it is left alone"
    for _ in range(2):
        scene.clock.now += 10
        for session in sessions:
            assert await scene.draft(session) == PROPOSED, "no round waits for the probe"
    assert len(a.sinks) == before + 2
    a.is_away = False
    scene.clock.now += 10
    await scene.draft(sessions[0])
    assert len(a.sinks) == before + 3 and scene.drafts.sides[0].is_well
    assert not scene.drafts.sides[0]._visitors and len(a.closed) == 2 + 3, "no probe's handle is left open"
    assert scene.counts() == [0, 4], "in the middle of their turns sessions stay"
    for session in sessions:
        scene.end(session)
        await scene.draft(session)
    assert scene.counts() == [2, 2] or scene.counts() == [1, 3]
    new = scene.begun()
    await scene.draft(new)
    assert scene.home(new) == "a"


async def test_no_probe_whose_answer_was_lost_leaves_a_handle_open() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun()
    await scene.draft(session)
    a.is_away = True
    for _ in range(2):
        await scene.draft(session)
    assert scene.home(session) == "b"
    a.is_away, a.is_unheard = False, True
    before = len(a.sinks)
    for _ in range(3):
        scene.clock.now += 10
        await scene.draft(session)
    assert len(a.sinks) == before + 3 and not a.closed[1:]
    a.is_unheard = False
    scene.clock.now += 10
    await scene.draft(session)
    assert scene.drafts.sides[0].is_well and sorted(a.closed) == sorted(set(a.asked_for))
    assert set(a.sinks[before:-1]) <= set(a.withdrawn), "nothing is waited for of those that are closed"
    assert not scene.drafts.sides[0]._visitors


async def test_under_the_ratio_test_a_session_stays_with_its_draft() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun()
    await scene.draft(session, stays=True)
    assert scene.home(session) == "a"
    a.is_away = True
    for _ in range(3):
        assert await scene.draft(session, stays=True) == ()
    assert scene.home(session) == "a" and not b.sinks


async def test_a_draft_with_another_tokenizer_gets_no_session_and_what_answers_for_it_is_known() -> None:
    stranger, fitting = (
        Named("a", replace(MODEL, tokenizer_fingerprint="another")),
        Named("b", replace(MODEL, name="b")),
    )
    scene = Scene(stranger, fitting)
    sessions = [scene.begun() for _ in range(3)]
    for session in sessions:
        assert await scene.draft(session) == PROPOSED
    assert scene.counts() == [0, 3] and not stranger.sinks
    assert scene.drafts.info == fitting.info and scene.drafts.mismatched is None
    alone = Scene(stranger)
    assert alone.drafts.mismatched == stranger.info
    assert await alone.draft(alone.begun()) == ()


async def test_one_that_comes_back_as_a_stranger_is_left() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun()
    await scene.draft(session)
    a._answer = lambda sink: sink.fail(PeerError(Code.FAILED_PRECONDITION, "TOKENIZER_MISMATCH", ""))  # type: ignore[method-assign]
    assert await scene.draft(session) == ()
    assert await scene.draft(session) == PROPOSED and scene.home(session) == "b"


async def test_a_draft_may_be_added_and_left_while_turns_run() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a)
    sessions = [scene.begun() for _ in range(4)]
    for session in sessions:
        await scene.draft(session)
    scene.drafts.add(side_of(b))
    for session in sessions:
        await scene.draft(session)
    assert scene.counts() == [4, 0]
    new = scene.begun()
    await scene.draft(new)
    assert scene.home(new) == "b"
    scene.drafts.retire("a")
    assert not scene.drafts.remove_retired()
    for session in sessions:
        assert await scene.draft(session) == PROPOSED
    assert scene.drafts.remove_retired() == ["a"] and scene.counts() == [5]


async def test_an_answer_of_the_draft_that_a_session_has_left_is_nothing_to_it() -> None:
    a, b = Named("a"), Named("b")
    scene = Scene(a, b)
    session = scene.begun()
    await scene.draft(session)
    old = session.sequence
    a._answer = lambda sink: None  # type: ignore[method-assign]
    running = asyncio.create_task(scene.draft(session))
    a.asked.clear()
    await a.asked.wait()
    late = a.sinks[-1]
    request = session.request
    assert request is not None
    request.give_up()
    await running
    await scene.draft(session)
    asked, handle = len(a.sinks), session.sequence.handle
    known = session.sequence.known_length
    late.fail(PeerError(Code.NOT_FOUND, "UNKNOWN_HANDLE", ""))
    late.finish(drawn(99, 99), TIMING)
    assert len(a.sinks) == asked, "no code would close what it would open"
    now = session.sequence
    assert now is not old and (now.handle, now.known_length) == (handle, known)
    assert await scene.draft(session) == PROPOSED


async def test_a_session_on_the_ratio_test_has_a_draft_that_makes_proposals() -> None:
    hinting, proposing = Named("a", replace(MODEL, hints_only=True)), Named("b")
    scene = Scene(hinting, proposing)
    for _ in range(3):
        assert await scene.draft(scene.begun(), stays=True) == PROPOSED
    assert scene.counts() == [0, 3] and not hinting.sinks
    other = scene.begun()
    scene.drafts.home(other, begins_turn=True, stays=False)
    assert scene.home(other) == "a", "hints come from either"
    assert await scene.draft(other, stays=True) == PROPOSED and scene.home(other) == "b"
    assert scene.counts() == [0, 4] and scene.drafts.move_count == 0


async def test_without_a_draft_that_makes_proposals_the_ratio_test_has_none() -> None:
    hinting = Named("a", replace(MODEL, hints_only=True))
    scene = Scene(hinting)
    assert await scene.draft(scene.begun(), stays=True) == () and scene.counts() == [0]


async def test_a_session_of_two_drafts_takes_the_ratio_test_to_the_one_that_makes_proposals() -> None:
    hinting, proposing = Named("a", replace(MODEL, hints_only=True, weights_fingerprint="x")), Named("b")
    scene = Scene(hinting, proposing)
    session, beside = draftings_of(0.5, 2)
    scene.tokens[session] = [1, 2, 3]
    for drafting in (session, beside):
        scene.drafts.home(drafting, begins_turn=True, stays=False)
    assert (scene.home(session), scene.home(beside)) == ("a", "b")
    assert await scene.draft(session, stays=True) == PROPOSED and scene.home(session) == "b"
