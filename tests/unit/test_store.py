"""Where sessions live: limits, expiry, pages, and requests that come twice."""

from __future__ import annotations

import pytest

from orchestrator.errors import (
    RequestIdReusedError,
    SessionExpiredError,
    SessionLimitError,
    SessionNotFoundError,
    TurnNotFoundError,
    TurnNotKeptError,
)
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.kept_turns import KEPT_SIZE, KEPT_TURNS, KeptTurns
from orchestrator.sessions.requests import RequestName, Requests
from orchestrator.sessions.session import Commit
from orchestrator.sessions.settings import GenerationSettings
from orchestrator.sessions.store import SessionRecord, SessionStore
from orchestrator.sessions.text import Codec
from orchestrator.sessions.turn_record import TurnRecord, TurnStarted
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.session import SessionSpeculation
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.unit.clock import Clock


def open_rounds(session_id: str) -> SessionRounds:
    return SessionRounds(session_id, SessionDrafting(SessionSpeculation(PairKnowledge())))


def codec() -> Codec:
    return Codec.from_files(load_tokenizer_files("arithmetic:").files)


def add(store: SessionStore, *, listed: bool = True) -> SessionRecord:
    store.make_room(1, listed=listed)
    return store.add(codec(), open_rounds, GenerationSettings(), listed=listed)


def test_an_idle_session_expires_and_is_told_from_one_that_never_was() -> None:
    clock = Clock()
    store = SessionStore(max_count=10, ttl_seconds=60, clock=clock)
    idle, busy = add(store), add(store)
    clock.now += 59
    store.touch(busy)
    assert store.expire() == []
    clock.now += 1
    assert store.expire() == [idle]
    with pytest.raises(SessionExpiredError, match="expired after 60 s"):
        store.get(idle.session.id)
    with pytest.raises(SessionNotFoundError):
        store.get("never")
    assert store.all() == [busy]


def test_the_store_has_a_limit_that_removing_makes_room_under() -> None:
    store = SessionStore(max_count=1, ttl_seconds=60)
    record = add(store)
    with pytest.raises(SessionLimitError):
        add(store)
    store.remove(record)
    add(store)


def test_generations_have_a_limit_of_their_own_and_old_ones_make_room() -> None:
    store = SessionStore(max_count=2, ttl_seconds=60)
    session, first, second = add(store), add(store, listed=False), add(store, listed=False)
    assert store.make_room(1, listed=False) == [first]
    assert store.get(session.session.id) is session
    assert store.get(second.session.id) is second
    with pytest.raises(SessionLimitError):
        store.make_room(3, listed=False)


def test_pages_go_back_in_time_and_survive_activity_and_deletion() -> None:
    clock = Clock()
    store = SessionStore(max_count=100, ttl_seconds=60, clock=clock)
    records = []
    for index in range(10):
        clock.now += index % 2  # some are created in the same microsecond
        records.append(add(store))
    in_order = sorted(records, key=lambda record: record.cursor, reverse=True)
    page, more = store.page(4, None)
    assert (page, more) == (in_order[:4], True)
    store.remove(page[-1])
    store.touch(in_order[7])
    add(store)
    rest, more = store.page(100, page[-1].cursor)
    assert (rest, more) == (in_order[4:], False)


def named(name: str, content: str = "") -> RequestName:
    return RequestName(name, content.encode())


def test_a_request_is_known_by_its_name_and_must_be_the_same() -> None:
    requests: Requests[int] = Requests(2)
    assert requests.find(named("a", "hello")) is None
    requests.keep(named("a", "hello"), 7)
    assert requests.find(named("a", "hello")) == 7
    with pytest.raises(RequestIdReusedError):
        requests.find(named("a", "goodbye"))
    requests.keep(named("", "nameless"), 8)
    assert requests.find(named("", "nameless")) is None and requests.answer_to("") is None
    with pytest.raises(InvalidFieldsError, match="request_id must have at most 128"):
        requests.find(named("x" * 129))


def test_requests_are_forgotten_oldest_first() -> None:
    requests: Requests[int] = Requests(2)
    for index in range(3):
        requests.keep(named(str(index)), index)
    assert [requests.find(named(str(index))) for index in range(3)] == [None, 1, 2]


def test_a_name_may_be_as_long_as_its_limit_and_is_known_whatever_it_came_with() -> None:
    requests: Requests[int] = Requests(2)
    longest = "x" * 128
    requests.keep(named(longest), 3)
    assert (requests.find(named(longest)), requests.answer_to(longest)) == (3, 3)
    assert (requests.answer_to("never"), requests.answer_to("")) == (None, None)
    requests.forget(longest)
    requests.forget("never")
    assert requests.find(named(longest, "another content")) is None
    requests.keep(named("a", "1"), 4)
    requests.keep(named("b"), 5)
    requests.keep(named("a", "2"), 6)
    assert (requests.find(named("a", "2")), requests.find(named("b"))) == (6, 5), "kept again it takes no room"


def test_a_request_answered_with_nothing_is_answered_all_the_same() -> None:
    requests: Requests[int] = Requests(2)
    requests.keep(named("a"), 0)
    assert (requests.find(named("a")), requests.answer_to("a")) == (0, 0)
    with pytest.raises(RequestIdReusedError):
        requests.find(named("a", "another content"))


def test_the_latest_turns_can_be_watched_and_older_ones_are_told_from_ones_that_never_were() -> None:
    turns = KeptTurns()
    for turn in range(1, KEPT_TURNS + 2):
        turns.add(TurnRecord(turn, TurnStarted("s", "", 0, 1)))
    assert turns.get(2).turn == 2
    with pytest.raises(TurnNotKeptError):
        turns.get(1)
    whole = TurnRecord(KEPT_TURNS + 2, TurnStarted("s", "", 0, 1))
    whole.add(Commit(tuple(range(KEPT_SIZE + 1)), ("",) * (KEPT_SIZE + 1), None), [], [])
    turns.add(whole)
    assert turns.get(whole.turn) is whole, "the latest is kept however long it is"
    with pytest.raises(TurnNotKeptError):
        turns.get(2)
    for never in (0, -1, KEPT_TURNS + 3):
        with pytest.raises(TurnNotFoundError):
            turns.get(never)
