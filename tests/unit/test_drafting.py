"""A request to the draft, and answers that come when no round expects them any more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.peers.exchange import PeerTiming
from orchestrator.peers.sequence import Position
from orchestrator.rounds.draft_request import DraftRequest, SessionDrafting
from orchestrator.rounds.note import ExchangeNote
from orchestrator.speculation.proposal import NOTHING_PROPOSED, Proposal
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.sampling.rule import SamplingRule

TIMING = PeerTiming(0.0, 0.001, 0.001, 0.002)


class Side:
    """Where a request puts its item, and what it reports."""

    def __init__(self) -> None:
        self.sent: list[Position] = []
        self.handles: list[str] = []
        self.failures: list[str] = []
        self.fallbacks: list[str] = []
        self.withdrawn: list[DraftRequest] = []

    def send(self, request: DraftRequest, sequence: Any, position: Position, traceparent: str) -> Callable[[], None]:
        self.sent.append(position)
        self.handles.append(sequence.handle)
        return lambda: self.withdrawn.append(request)

    def answered(self, request: DraftRequest, timing: PeerTiming | None) -> None:
        pass

    def failed(self, request: DraftRequest, reason: str) -> None:
        self.failures.append(reason)

    def fell_back(self, reason: str) -> None:
        self.fallbacks.append(reason)


def new_exchange() -> ExchangeNote:
    return ExchangeNote("propose", "here", 0.0)


def request(
    side: Side, session: SessionDrafting, tokens: list[int], exchange: ExchangeNote | None = None
) -> DraftRequest:
    return DraftRequest(side, session, tokens, SamplingRule(), 4, exchange or new_exchange())


@pytest.fixture
def session() -> SessionDrafting:
    return SessionDrafting()


async def test_an_answer_teaches_what_the_draft_holds_and_brings_its_proposal(session: SessionDrafting) -> None:
    side, tokens = Side(), [1, 2, 3]
    asked = request(side, session, tokens)
    asked.finish(Proposal((4, 5)), TIMING)
    tokens.append(4)
    assert asked.proposal == Proposal((4, 5))
    assert session.sequence.position(tokens) == Position(3, [4])
    assert asked.done.is_set() and session.take_finished() == [TIMING]


async def test_an_answer_that_comes_in_the_next_turn_teaches_nothing(session: SessionDrafting) -> None:
    side = Side()
    session.request = request(side, session, [1, 2, 3, 4, 5])
    late, probe = session.request, request(side, session, [1, 2, 3, 4, 5])
    session.begin_turn(2)  # the history was edited: only two tokens are what they were
    for each in (late, probe):
        each.finish(Proposal((6, 7)), TIMING)
    assert session.sequence.position([1, 2, 9, 9, 9]).base_length <= 2
    assert late.proposal is None


async def test_a_position_that_is_refused_is_stated_again_and_other_failures_are_the_drafts(
    session: SessionDrafting,
) -> None:
    side = Side()
    session.sequence.learn(4)
    asked = request(side, session, [1, 2, 3, 4, 5, 6])
    asked.fail(PeerError(Code.FAILED_PRECONDITION, "SEQUENCE_TOO_SHORT", "", {"cached_length": "1"}))
    assert [position.base_length for position in side.sent] == [4, 1] and not asked.done.is_set()
    asked.fail(PeerError(Code.UNAVAILABLE, "STREAM_LOST", ""))
    assert asked.done.is_set() and side.failures == ["STREAM_LOST"] and session.take_failed()
    overtaken = request(side, session, [1, 2])
    overtaken.fail(PeerError(Code.ABORTED, "STALE_ROUND", ""))
    assert overtaken.done.is_set() and side.failures == ["STREAM_LOST"] and not session.take_failed()


async def test_two_requests_that_a_draft_without_handles_refuses_open_one_handle(session: SessionDrafting) -> None:
    side = Side()
    session.sequence.is_open = True
    refused = PeerError(Code.NOT_FOUND, "UNKNOWN_HANDLE", "")
    first, second = request(side, session, [1, 2, 3]), request(side, session, [1, 2, 3, 4])
    first.fail(refused)
    opened = session.sequence.handle
    second.fail(refused)
    assert side.handles == [side.handles[0]] * 2 + [opened] * 2 and session.sequence.handle == opened


async def test_a_request_that_is_given_up_is_withdrawn_from_the_stream(session: SessionDrafting) -> None:
    side = Side()
    asked = request(side, session, [1, 2, 3])
    asked.give_up()
    assert asked.done.is_set() and side.withdrawn == [asked] and side.failures == ["DRAFT_LATE"]


async def test_an_answer_that_comes_with_its_deadline_is_no_failure(session: SessionDrafting) -> None:
    side = Side()
    asked = request(side, session, [1, 2, 3])
    asked.finish(NOTHING_PROPOSED, TIMING)
    asked.give_up()
    assert not side.failures and not side.withdrawn and not session.take_failed()


@pytest.mark.parametrize("late", ["finished", "failed", "stale", "given up", "left"])
async def test_an_abandoned_request_ends_once_with_any_late_answers(session: SessionDrafting, late: str) -> None:
    exchange = new_exchange()
    asked = request(Side(), session, [1, 2, 3], exchange)
    asked.leave()
    ended = exchange.ended
    if late == "finished":
        asked.finish(NOTHING_PROPOSED, TIMING)
    elif late in ("failed", "stale"):
        reason = "STALE_ROUND" if late == "stale" else "BROKEN"
        asked.fail(PeerError(Code.INTERNAL, reason, ""))
    elif late == "given up":
        asked.give_up()
    else:
        asked.leave()
    assert asked.done.is_set() and exchange.ended == ended is not None
    assert exchange.left and exchange.ending is None


async def test_what_a_session_knew_is_free_as_soon_as_it_is_over() -> None:
    session = SessionDrafting()
    session.request = request(Side(), session, [1, 2, 3])
    session.request.finish(NOTHING_PROPOSED, TIMING)
    gc.collect()
    gc.disable()
    try:
        session.leave_request()
        known = weakref.ref(session.breaker)
        del session
        assert known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["finished", "given up", "left"])
async def test_a_request_that_is_over_is_free_at_once_and_waits_for_no_collector(
    session: SessionDrafting, how: str
) -> None:
    class Circular(Side):
        def send(self, request: DraftRequest, *rest: Any) -> Callable[[], None]:
            super().send(request, *rest)
            return lambda: self.withdrawn.append(request)

    side = Circular()
    asked = request(side, session, [1, 2, 3])
    gc.collect()
    gc.disable()
    try:
        if how == "finished":
            asked.finish(NOTHING_PROPOSED, TIMING)
        elif how == "given up":
            asked.give_up()
        else:
            asked.leave()
        side.withdrawn.clear()
        gone = weakref.ref(asked)
        del asked
        assert gone() is None
    finally:
        gc.enable()
