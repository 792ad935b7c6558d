"""Hints from a draft: what it is told, what is passed on, and what a draft that fails changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.peers.breaker import Breaker
from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.model_info import ModelInfo
from orchestrator.peers.run_parts import Part, Step
from orchestrator.proposers.draft import DraftProposer
from orchestrator.proposers.paying import REST, WINDOW
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.drafts import Drafts
from orchestrator.rounds.terms import RoundTerms
from orchestrator.speculation.proposal import Source
from orchestrator.speculation.settings import SpeculationSettings
from slipstream.engine.errors import SequenceTooShortError, UnknownHandleError
from slipstream.errors import Code
from slipstream.processors import Processors
from slipstream.rpc.status import PeerError, StreamLostError, status_of
from slipstream.rpc.wire import duration
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, hint_pb2
from tests.clock import Clock
from tests.scripted_peers import MODEL, Draft, side_of

ADAPTIVE = RoundTerms(SamplingRule(), SpeculationSettings())
SHARED = Processors("machine", frozenset({0, 1}), 2)


class Sink:
    """A verifier's run."""

    traceparent = f"00-{7:032x}-{8:016x}-01"
    goes_on = True

    def __init__(self) -> None:
        self.hints: list[hint_pb2.Hint] = []

    def hint(self, message: hint_pb2.Hint) -> None:
        self.hints.append(message)


class Session:
    """A session's proposer over one draft."""

    def __init__(self, *others: Draft) -> None:
        self.draft, self.sink = Draft(), Sink()
        self.sides = [side_of(draft) for draft in (self.draft, *others)]
        self.side = self.sides[0]
        self.drafting = SessionDrafting()
        self.proposer = DraftProposer(Drafts(self.sides), self.drafting, "s")
        self.tokens = [1, 2, 3]

    def begin(self, terms: RoundTerms = ADAPTIVE, verifier: ModelInfo = MODEL) -> float | None:
        hold = self.proposer.prepare(terms, verifier)
        self.proposer.begin(self.tokens, 4000, terms, self.sink)
        return hold

    def commit(self, *tokens: int, steps: Sequence[Step] = (), seconds: float = 0.01) -> None:
        position = len(self.tokens)
        self.tokens += tokens
        timing = PeerTiming(0.0, seconds, seconds, seconds)
        self.proposer.committed(position, Part(tokens, timing, 0, (), (), 0.0, tuple(steps), 0.0))

    def answer(self, *hints: hint_pb2.Hint, seconds: float = 0.0, **values: Any) -> None:
        result = draft_pb2.DraftResult(hints=hints, **values)
        result.timing.forward.CopyFrom(duration(seconds))
        self.draft.runs[-1].receive(result)

    def refuse(self, error: Exception) -> None:
        self.draft.runs[-1].receive(draft_pb2.DraftResult(error=status_of(error)))

    @property
    def starts(self) -> list[list[int]]:
        """Lengths that were stated, tokens of the tail last."""
        told = [item.start for item in self.draft.told if item.WhichOneof("action") == "start"]
        return [[start.base_length, *start.tail] for start in told]

    def told(self, action: str) -> list[Any]:
        return [getattr(item, action) for item in self.draft.told if item.WhichOneof("action") == action]


def failures(session: Session) -> list[Exception]:
    """Failures of the draft since the last call."""
    return [work.error for work in session.proposer.take_figures().works if work.error is not None]


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def hint(*tokens: int, start: int = 3, due: float | None = None, **values: Any) -> hint_pb2.Hint:
    given = {"start": start, "survivals": [0.5] * len(tokens), "source": hint_pb2.HINT_SOURCE_DRAFT}
    message = hint_pb2.Hint(tokens=tokens, **{**given, "length_seen": 3, **values})
    if due is not None:
        message.next_due.CopyFrom(duration(due))
    return message


def test_a_draft_is_told_of_commits_and_its_hints_go_to_the_verifier(session: Session) -> None:
    session.begin()
    session.answer(hint(4, 5, due=0.01), seconds=0.25)
    session.commit(4, 9)
    session.proposer.stop()
    assert session.starts == [[0, 1, 2, 3]] and session.told("start")[0].traceparent.startswith(Sink.traceparent[:36])
    assert [(commit.position, *commit.tokens) for commit in session.told("commit")] == [(3, 4, 9)]
    assert session.sink.hints == [hint(4, 5, due=0.01)]
    assert len(session.told("stop")) == 1 and session.draft.given_up == session.draft.runs
    (work,) = session.proposer.take_figures().works
    assert work.timing is not None and (work.timing.forward, work.token_count) == (0.25, 2)
    assert session.told("start")[0].traceparent == f"{Sink.traceparent[:36]}{work.span_id:016x}-01"
    assert not session.proposer.take_figures().works


def test_work_after_the_last_part_of_a_run_belongs_to_no_later_run(session: Session) -> None:
    session.begin()
    session.answer(hint(4, 5), seconds=0.25)
    session.proposer.stop()
    session.begin()
    assert not session.proposer.take_figures().works


def test_the_next_run_keeps_what_the_draft_has_read(session: Session) -> None:
    session.begin()
    session.answer(hint(4, 5))
    session.proposer.stop()
    session.tokens += [4, 9]
    session.begin()
    assert session.starts[1] == [2, 3, 4, 9]


@pytest.mark.parametrize(
    "wrong",
    [
        hint(),
        hint(*range(65)),
        hint(-1),
        hint(1000),
        hint(4, survivals=[0.5, 0.5]),
        hint(4, survivals=[1.5]),
        hint(4, survivals=[float("nan")]),
        hint(4, start=-1),
        hint(4, start=4001),
        hint(4, length_seen=4),
        hint(4, source=hint_pb2.HINT_SOURCE_NGRAM),
        hint(4, due=4000.0),
    ],
)
def test_a_hint_that_no_draft_can_send_is_a_fault_and_goes_nowhere(session: Session, wrong: hint_pb2.Hint) -> None:
    session.begin()
    session.answer(hint(4), wrong)
    assert not session.sink.hints and len(session.draft.faults) == 1
    assert len(session.told("stop")) == 1 and not session.side.is_well
    assert failures(session)


def test_tokens_that_the_target_does_not_have_are_left_out(session: Session) -> None:
    session.begin(verifier=replace(MODEL, vocabulary_size=10))
    session.answer(hint(4, 5, 10, 6), hint(10))
    assert [list(passed.tokens) for passed in session.sink.hints] == [[4, 5]]
    assert len(session.sink.hints[0].survivals) == 2


def test_a_draft_that_sends_hints_without_end_does_not_flood_the_verifier(session: Session) -> None:
    session.begin()
    for _ in range(100):
        session.answer(hint(*range(64)))
    flood = len(session.sink.hints)
    assert flood <= 64
    session.commit(4)
    session.answer(hint(5))
    assert len(session.sink.hints) == flood + 1


def test_a_draft_that_has_lost_the_sequence_is_told_all_of_it_again(session: Session) -> None:
    session.begin()
    session.answer(hint(4))
    session.commit(4)
    session.refuse(SequenceTooShortError("", cached_length=1))
    session.commit(5)
    session.refuse(UnknownHandleError(""))
    assert session.starts == [[0, 1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert session.draft.told[-1].handle != session.draft.told[0].handle
    assert session.side.is_well and not failures(session)


@pytest.mark.parametrize("with_hint", [False, True], ids=["without a hint", "with the same hint"])
def test_a_draft_that_only_answers_before_it_forgets_is_left_alone(session: Session, with_hint: bool) -> None:
    session.begin()
    for _ in range(10):
        if len(session.draft.runs) and not session.draft.runs[-1].has_ended:
            session.answer(*([hint(4)] if with_hint else []))
            session.refuse(UnknownHandleError(""))
    assert len(session.starts) <= 5


def test_a_draft_that_never_knows_the_sequence_is_left_alone_until_the_next_run(session: Session) -> None:
    session.begin()
    for token in range(10):
        session.refuse(UnknownHandleError(""))
        session.commit(token)
    assert len(session.starts) == 4
    assert session.side.is_well and failures(session)
    session.proposer.stop()
    session.begin()
    assert len(session.starts) == 5


def test_a_lost_stream_is_opened_again_after_a_pause(session: Session, clock: Clock) -> None:
    session.side._breaker = Breaker(clock=clock)
    session.begin()
    session.draft.runs[-1].fail(StreamLostError("gone"))
    session.commit(4)
    assert len(session.starts) == 1 and not session.side.is_well
    clock.now += 1.0
    session.commit(5)
    assert session.starts[1:] == [[0, 1, 2, 3, 4, 5]]
    session.commit(6)
    assert len(session.starts) == 2, "one session sees whether it is back"
    session.answer(hint(7, start=6))
    assert session.side.is_well and session.side.recoveries == 1


def test_a_draft_that_owes_hints_counts_as_away_and_the_next_turn_goes_to_another(clock: Clock) -> None:
    session = Session(Draft())
    session.sides[1]._draft.address = "there:2"
    session.proposer = DraftProposer(Drafts(session.sides), session.drafting, "s")
    session.begin()
    for _ in range(20):
        session.answer(hint(4, due=0.01))
        clock.now += 0.01
        session.commit(4)
    clock.now += 0.9
    session.commit(5)
    assert session.side.is_well
    clock.now += 2.0
    session.commit(6)
    assert not session.side.is_well and session.side.fallbacks == {"DRAFT_LATE": 1}
    assert len(session.told("stop")) == 1
    session.proposer.stop()
    session.begin()
    assert session.drafting.sequence.address == "there:2"


def test_a_draft_that_is_lost_in_a_turn_is_left_for_another() -> None:
    other = Draft()
    other.address = "elsewhere:1"
    session = Session(other)
    session.begin()
    session.answer(hint(4, 5))
    session.draft.runs[-1].fail(StreamLostError("the stream is lost"))
    session.commit(4)
    session.commit(9)
    starts = [item.start for item in other.told if item.WhichOneof("action") == "start"]
    assert [[start.base_length, *start.tail] for start in starts] == [[0, 1, 2, 3, 4]]
    assert [(item.commit.position, *item.commit.tokens) for item in other.told[1:]] == [(4, 9)]
    assert [side.session_count for side in session.sides] == [0, 1]


def test_a_draft_that_rests_or_answers_others_owes_nothing(session: Session, clock: Clock) -> None:
    session.begin()
    session.answer(hint(4, due=0.01))
    clock.now += 60.0
    session.side.record_hints(0)
    session.commit(4)
    session.answer(hint(5, start=4, length_seen=4))
    clock.now += 60.0
    session.commit(5)
    assert session.side.is_well and len(session.told("commit")) == 2


def test_a_draft_that_reads_a_long_text_has_time_for_it(session: Session, clock: Clock) -> None:
    session.tokens = [1] * 3000
    session.begin()
    clock.now += 20.0
    session.commit(4)
    assert session.side.is_well
    clock.now += 20.0
    session.commit(5)
    assert not session.side.is_well


def test_a_draft_whose_health_is_gone_is_left_alone_at_once(session: Session) -> None:
    session.begin()
    session.draft.reachable = False
    session.commit(4)
    session.commit(5)
    assert not session.side.is_well and not session.told("commit") and len(session.starts) == 1


@pytest.mark.parametrize("asked", [SpeculationSettings(0), SpeculationSettings(4, source=Source.NGRAM)])
def test_a_turn_without_a_draft_tells_it_nothing(session: Session, asked: SpeculationSettings) -> None:
    assert session.begin(RoundTerms(SamplingRule(), asked)) is None
    session.commit(4)
    session.proposer.stop()
    assert not session.draft.told and session.drafting.sequence.address is None


def test_a_fixed_length_is_guessed_and_waited_for(session: Session) -> None:
    hold = session.begin(RoundTerms(SamplingRule(), SpeculationSettings(4)))
    assert hold == 1.0 and session.told("start")[0].least_length == 4


def test_a_draft_is_told_its_price_only_where_it_shares_the_targets_processors(session: Session) -> None:
    verifier = replace(MODEL, processors=SHARED, step_times=((1, 0.02), (8, 0.03)))
    assert session.begin(verifier=verifier) is None
    session.commit(4, 5, seconds=0.1)
    session.proposer.stop()
    session.draft.info = replace(MODEL, processors=SHARED)
    assert session.begin(verifier=verifier) == 0.05
    session.commit(6, 7, seconds=0.1)
    assert [commit.price for commit in session.told("commit")] == [0.0, pytest.approx(20.0)]


def test_a_draft_stands_still_while_a_trial_goes_on_without_it(session: Session) -> None:
    """Else it would guess on up to its horizon, and the trial would measure that. Afterwards it
    starts from all that was committed."""
    session.draft.info = replace(MODEL, processors=SHARED)
    session.begin(verifier=replace(MODEL, processors=SHARED))
    trials = session.side.shared.trials_of(0.0, 0)
    session.commit(4)
    told = len(session.told("commit"))
    trials._is_on = False
    session.commit(5, 6)
    session.commit(7)
    assert len(session.told("commit")) == told and len(session.told("stop")) == 1
    trials._is_on = True
    session.commit(8)
    assert session.starts[-1][-5:] == [4, 5, 6, 7, 8]


def test_a_draft_is_not_told_of_the_last_tokens_of_a_run(session: Session) -> None:
    """It would guess past them."""
    session.begin()
    session.commit(4)
    session.sink.goes_on = False
    told = len(session.told("commit"))
    session.commit(5)
    assert len(session.told("commit")) == told and len(session.told("stop")) == 1


def test_a_draft_whose_work_is_nothing_beside_the_target_needs_no_trial(session: Session) -> None:
    """The longest hint has 64 tokens here."""
    for step, is_tried in ((0.0005, False), (0.002, True)):
        verifier = replace(MODEL, processors=SHARED, max_draft_length=64, step_times=((1, 0.04), (8, 0.05)))
        session.draft.info = replace(MODEL, processors=SHARED, step_times=((1, step), (8, step)))
        session.begin(verifier=verifier)
        assert (session.proposer._trials is not None) == is_tried
        session.proposer.stop()


def drafted(hint_count: int, accepted: int) -> Step:
    return Step(accepted + 1, hint_count, accepted, Source.DRAFT, 0.0, PeerTiming(0.0, 0.0, 0.0, 0.0))


def hint_and_commit(session: Session, count: int, accepted: int) -> None:
    length = len(session.tokens)
    session.answer(hint(*[5] * count, start=length, length_seen=length))
    session.commit(*[5] * (accepted + 1), steps=[drafted(count, accepted)])


def test_a_draft_that_is_never_right_rests_and_is_tried_again(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    session.begin()
    with caplog.at_level("INFO"):
        while not session.proposer.rests:
            hint_and_commit(session, 4, 0)
    assert len(session.tokens) <= WINDOW + 4
    assert "speculation does not pay for session s" in caplog.text
    assert session.proposer.take_figures().is_switched_off and not session.proposer.take_figures().is_switched_off
    assert len(session.told("stop")) == 1 and session.side.is_well
    for _ in range(REST):
        session.commit(5)
    assert not session.proposer.rests and len(session.starts) == 2
    assert session.side.verified_count == 4 * (len(session.told("commit")) + 1)


def test_a_draft_that_is_often_right_goes_on(session: Session) -> None:
    session.begin()
    for _ in range(WINDOW):
        hint_and_commit(session, 4, 1)
    assert not session.proposer.rests and session.side.accepted_count == WINDOW


def test_a_fixed_length_is_never_switched_off(session: Session) -> None:
    session.begin(RoundTerms(SamplingRule(), SpeculationSettings(4)))
    for _ in range(2 * WINDOW):
        hint_and_commit(session, 4, 0)
    assert not session.proposer.rests


def test_a_refusal_of_one_session_is_not_the_drafts_failure(session: Session) -> None:
    session.begin()
    session.draft.runs[-1].fail(PeerError(Code.OUT_OF_RANGE, "CONTEXT_EXCEEDED", "too long"))
    session.commit(4)
    assert session.side.is_well and len(session.starts) == 1
    assert session.side.fallbacks == {"CONTEXT_EXCEEDED": 1}


def test_no_step_waits_for_a_draft_that_sends_nothing(session: Session) -> None:
    """It is away, its hints do not pay, or a trial goes on without them."""
    fixed = RoundTerms(SamplingRule(), SpeculationSettings(4))
    shared = replace(MODEL, processors=SHARED)
    session.draft.info = shared
    session.side.shared.trials_of(0.0, 0)._is_on = False
    assert session.begin(verifier=shared) is None
    session.proposer.stop()
    assert session.begin(fixed, verifier=shared) == 1.0
    session.proposer.stop()
    session.draft.reachable = False
    assert session.begin(fixed, verifier=shared) is None


@pytest.mark.parametrize(("draft_step", "may_pay"), [(0.02, False), (0.0181, False), (0.017, True)])
def test_a_draft_that_costs_as_much_as_its_target_on_shared_processors_rests(
    session: Session, draft_step: float, may_pay: bool
) -> None:
    """It could not pay if it were always right. A turn of a fixed length asks for it all the
    same."""
    verifier = replace(MODEL, processors=SHARED, step_times=((1, 0.02), (8, 0.03)))
    session.draft.info = replace(MODEL, processors=SHARED, step_times=((1, draft_step),))
    assert session.begin(verifier=verifier) == (0.05 if may_pay else None)
    assert bool(session.told("start")) is may_pay and session.proposer.rests is not may_pay
    session.commit(4, 5)
    session.proposer.stop()
    session.begin(RoundTerms(SamplingRule(), SpeculationSettings(4)), verifier=verifier)
    assert session.told("start")[-1].least_length == 4


def test_a_draft_of_one_thread_leaves_its_target_the_other_processors(session: Session) -> None:
    verifier = replace(MODEL, processors=SHARED, step_times=((1, 0.02), (8, 0.03)))
    one = Processors("machine", frozenset({0, 1}), 1)
    session.draft.info = replace(MODEL, processors=one, step_times=((1, 0.03),))
    assert session.begin(verifier=verifier) == 0.05


def test_a_draft_on_processors_of_its_own_may_be_as_slow_as_its_target(session: Session) -> None:
    verifier = replace(MODEL, processors=SHARED, step_times=((1, 0.02), (8, 0.03)))
    session.draft.info = replace(MODEL, processors=Processors("other", frozenset({0}), 1), step_times=((1, 0.03),))
    session.begin(verifier=verifier)
    assert session.told("start") and not session.proposer.rests


def test_a_turn_whose_draft_is_removed_goes_on_without_one(session: Session) -> None:
    session.begin()
    session.answer(hint(4, 5))
    session.proposer._drafts.retire(session.draft.address)
    session.commit(4)
    session.commit(9)
    assert session.draft.given_up == session.draft.runs and len(session.told("start")) == 1
    assert not session.told("commit") and session.side.shared.run_count == 0
    session.proposer.stop()
    assert session.side.session_count == 0 and session.side.shared.run_count == 0
    assert session.begin() is None and len(session.told("start")) == 1


def test_a_turn_that_leaves_its_draft_is_in_no_figures_by_position() -> None:
    other = Draft()
    other.address = "other:1"
    session = Session(other)
    session.begin()
    hint_and_commit(session, 4, 2)
    assert not session.side.figures.drafted_lengths, "the turn has not ended"
    session.proposer.stop()
    session.begin()
    hint_and_commit(session, 3, 1)
    session.side._breaker.record_failure()
    session.commit(5)
    session.proposer.stop()
    first, second = (side.figures for side in session.sides)
    assert (first.turn_count, first.drafted_lengths, first.accepted_lengths) == (1, {4: 1}, {2: 1})
    assert (second.turn_count, second.drafted_lengths) == (0, {})
    assert [side.verified_count for side in session.sides] == [7, 0]
