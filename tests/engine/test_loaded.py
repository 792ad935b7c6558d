"""The sessions in memory: limits, expiry, kept turns, and requests that come twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrator.errors import (
    RequestIdReusedError,
    SessionLimitError,
    SessionNotFoundError,
    TurnNotFoundError,
    TurnNotKeptError,
)
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.conversation.codec import Codec
from orchestrator.sessions.conversation.session import Session
from orchestrator.sessions.conversation.settings import GenerationSettings
from orchestrator.sessions.conversation.turn_limits import Commit
from orchestrator.sessions.durability.loaded import (
    MAX_RECENT_SIZE,
    MAX_RECENT_TURNS,
    LoadedSessions,
    RecentTurns,
    SessionRecord,
)
from orchestrator.sessions.durability.stored_session import StoredSession
from orchestrator.sessions.turns.request_names import RequestName, Requests
from orchestrator.sessions.turns.turn_record import TurnRecord, TurnStarted
from orchestrator.store.rows import EndRow
from slipstream.errors import InvalidFieldsError
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from tests.clock import Clock

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def codec() -> Codec:
    return Codec.from_files(load_tokenizer_files("arithmetic:").files)


def add(loaded: LoadedSessions, name: str, *, listed: bool = True) -> SessionRecord:
    rounds = SessionRounds(name, SessionDrafting())
    stored = StoredSession(None, GenerationSettings(), 0.0, 0.0, listed)
    record = SessionRecord(Session(name, codec(), WHEN), stored, rounds)
    loaded.add(record)
    return record


def test_an_idle_session_expires_by_the_steady_clock() -> None:
    clock, steady = Clock(), Clock()
    loaded = LoadedSessions(max_count=10, ttl_seconds=60, clock=clock, steady_clock=steady)
    idle, busy = add(loaded, "idle"), add(loaded, "busy")
    clock.now += 1e9  # the time of day is set
    assert loaded.idle() == []
    steady.now += 59
    loaded.touch(busy)
    assert busy.stored.last_active == clock.now
    assert loaded.idle() == []
    clock.now -= 1e9
    steady.now += 1
    assert loaded.idle() == [idle]
    loaded.remove(idle)
    with pytest.raises(SessionNotFoundError):
        loaded.get("idle")
    assert loaded.all() == [busy] and loaded.get("busy") is busy


def test_generations_have_a_limit_and_old_ones_make_room() -> None:
    loaded = LoadedSessions(max_count=2, ttl_seconds=60)
    session, first, second = add(loaded, "s"), add(loaded, "a", listed=False), add(loaded, "b", listed=False)
    assert loaded.remove_ended_generations(1) == [first]
    assert loaded.get("s") is session
    assert loaded.get("b") is second
    assert len(loaded) == 1
    with pytest.raises(SessionLimitError):
        loaded.remove_ended_generations(3)


def named(name: str, content: str = "") -> RequestName:
    return RequestName(name, content.encode())


def test_a_request_is_known_by_its_name_and_must_be_the_same() -> None:
    requests: Requests[int] = Requests(2)
    assert requests.find(named("a", "hello")) is None
    requests.remember(named("a", "hello"), 7)
    assert requests.find(named("a", "hello")) == 7
    with pytest.raises(RequestIdReusedError):
        requests.find(named("a", "goodbye"))
    requests.remember(named("", "nameless"), 8)
    assert requests.find(named("", "nameless")) is None and requests.answer_to("") is None
    with pytest.raises(InvalidFieldsError, match="request_id must have at most 128"):
        requests.find(named("x" * 129))


def test_requests_are_forgotten_oldest_first() -> None:
    requests: Requests[int] = Requests(2)
    for index in range(3):
        requests.remember(named(str(index)), index)
    assert [requests.find(named(str(index))) for index in range(3)] == [None, 1, 2]


def test_a_name_may_be_as_long_as_its_limit_with_any_content() -> None:
    requests: Requests[int] = Requests(2)
    longest = "x" * 128
    requests.remember(named(longest), 3)
    assert (requests.find(named(longest)), requests.answer_to(longest)) == (3, 3)
    assert (requests.answer_to("never"), requests.answer_to("")) == (None, None)
    requests.forget(longest)
    requests.forget("never")
    assert requests.find(named(longest, "another content")) is None
    requests.remember(named("a", "1"), 4)
    requests.remember(named("b"), 5)
    requests.remember(named("a", "2"), 6)
    assert (requests.find(named("a", "2")), requests.find(named("b"))) == (6, 5), "kept again it takes no room"


def test_a_request_answered_with_nothing_is_answered_all_the_same() -> None:
    requests: Requests[int] = Requests(2)
    requests.remember(named("a"), 0)
    assert (requests.find(named("a")), requests.answer_to("a")) == (0, 0)
    with pytest.raises(RequestIdReusedError):
        requests.find(named("a", "another content"))


def test_the_latest_turns_can_be_watched_and_older_ones_are_told_from_ones_that_never_were() -> None:
    turns = RecentTurns()
    for turn in range(1, MAX_RECENT_TURNS + 2):
        turns.add(TurnRecord(turn, TurnStarted("s", "", 0, 1)))
    assert turns.get(2).turn == 2
    with pytest.raises(TurnNotKeptError):
        turns.get(1)
    whole = TurnRecord(MAX_RECENT_TURNS + 2, TurnStarted("s", "", 0, 1))
    whole.add(Commit(tuple(range(MAX_RECENT_SIZE + 1)), ("",) * (MAX_RECENT_SIZE + 1), None), [], [])
    turns.add(whole)
    assert turns.get(whole.turn) is whole, "the latest is kept however long it is"
    with pytest.raises(TurnNotKeptError):
        turns.get(2)
    for never in (0, -1, MAX_RECENT_TURNS + 3):
        with pytest.raises(TurnNotFoundError):
            turns.get(never)


def test_sessions_too_many_are_given_up_where_nothing_goes_on_in_them() -> None:
    loaded = LoadedSessions(max_count=2, ttl_seconds=60)
    records = [add(loaded, f"s{index}") for index in range(2)]
    assert loaded.evictable() == []
    records += [add(loaded, f"s{index}") for index in range(2, 5)]
    records[0].stored.unwritten[1] = EndRow(b"", "", forgotten=False)
    loaded.touch(records[1])
    add(loaded, "g", listed=False)
    assert [each.session.id for each in loaded.evictable()] == ["s2", "s3", "s4"]
