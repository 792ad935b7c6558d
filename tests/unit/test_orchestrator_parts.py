"""The small pure parts: what a peer is known to hold, the breaker, the store, the leases."""

import json

import pytest

from orchestrator.errors import SessionExpiredError, SessionLimitError, SessionNotFoundError
from orchestrator.peers.breaker import Breaker
from orchestrator.peers.sequence import PeerSequence
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.session import SessionRounds
from orchestrator.sessions.store import SessionStore
from orchestrator.sessions.text import Codec
from orchestrator.speculation.knowledge import PairKnowledge
from orchestrator.speculation.session import SessionSpeculation
from slipstream.engine.errors import UnknownHandleError
from slipstream.engine.leases import Leases
from slipstream.hosting.tokenizer_files import load_tokenizer_files


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_rounds(session_id: str) -> SessionRounds:
    return SessionRounds(session_id, SessionDrafting(SessionSpeculation(PairKnowledge())))


def codec() -> Codec:
    files = load_tokenizer_files("arithmetic:").files
    return Codec(files["tokenizer.json"], json.loads(files["tokenizer_config.json"]), None)


def test_a_position_always_sends_the_last_token() -> None:
    peer = PeerSequence(known_length=5)
    position = peer.position([1, 2, 3, 4, 5])
    assert (position.base_length, list(position.tail)) == (4, [5])


def test_asking_cuts_what_is_known_until_an_answer_says_more() -> None:
    peer = PeerSequence(known_length=3)
    assert peer.position(list(range(9))).base_length == 3
    peer.learn(8)
    assert peer.position(list(range(10))).base_length == 8
    peer.limit(2)
    assert list(peer.position([7, 8, 9]).tail) == [9]


def test_a_forgotten_peer_gets_everything_again() -> None:
    peer = PeerSequence(is_open=True, known_length=4)
    known = peer.handle
    peer.forget()
    assert peer.handle != known and not peer.is_open
    assert list(peer.position([1, 2, 3]).tail) == [1, 2, 3]


def test_the_breaker_pauses_twice_as_long_each_time_and_forgets_on_success() -> None:
    clock = Clock()
    breaker = Breaker(first_pause=1, longest_pause=3, clock=clock)
    for pause in (1, 2, 3, 3):
        assert breaker.allows
        breaker.failed()
        clock.now += pause - 0.1
        assert not breaker.allows
        clock.now += 0.2
    breaker.succeeded()
    breaker.failed()
    clock.now += 1
    assert breaker.allows


def test_many_failures_at_once_open_the_breaker_once() -> None:
    clock = Clock()
    breaker = Breaker(first_pause=1, longest_pause=60, clock=clock)
    for _ in range(50):
        breaker.failed()
    clock.now += 1
    assert breaker.allows


def test_an_idle_session_expires_and_is_told_from_one_that_never_was() -> None:
    clock = Clock()
    store = SessionStore(open_rounds, max_count=10, ttl_seconds=60, clock=clock)
    idle, busy = store.create(codec()), store.create(codec())
    clock.now += 59
    store.touch(busy)
    assert store.expire() == []
    clock.now += 1
    assert store.expire() == [idle]
    with pytest.raises(SessionExpiredError, match="expired after 60 s"):
        store.get(idle.session.id)
    with pytest.raises(SessionNotFoundError):
        store.get("never")
    assert store.recent_first() == [busy]


def test_the_store_has_a_limit() -> None:
    store = SessionStore(open_rounds, max_count=1, ttl_seconds=60)
    record = store.create(codec())
    with pytest.raises(SessionLimitError):
        store.create(codec())
    store.delete(record.session.id)
    store.create(codec())


def test_a_lease_ends_when_idle_and_use_renews_it() -> None:
    clock = Clock()
    leases = Leases(clock)
    leases.grant("a", 10)
    clock.now += 9
    leases.renew("a")
    clock.now += 9
    assert leases.ended() == []
    clock.now += 1
    assert leases.ended() == ["a"]
    with pytest.raises(UnknownHandleError):
        leases.renew("a")
    leases.extend("a")
    assert leases.ended() == []
    leases.end("a")
    leases.extend("a")
    assert len(leases) == 0
