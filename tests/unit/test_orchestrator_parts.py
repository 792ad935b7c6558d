"""The small pure parts: what a peer is known to hold, the breaker, the leases."""

import pytest

from orchestrator.peers.breaker import Breaker, jittered
from orchestrator.peers.sequence import PeerSequence, StatedRule
from slipstream.engine.errors import UnknownHandleError
from slipstream.engine.leases import Leases
from slipstream.sampling.rule import SamplingRule
from tests.clock import Clock


def test_a_position_always_sends_the_last_token() -> None:
    peer = PeerSequence(known_length=5)
    position = peer.position([1, 2, 3, 4, 5])
    assert (position.base_length, list(position.tail)) == (4, [5])


def test_a_new_sequence_states_everything_in_its_first_round() -> None:
    peer = PeerSequence()
    position = peer.position([1, 2, 3])
    assert (position.base_length, list(position.tail), peer.next_round(), peer.is_open) == (0, [1, 2, 3], 1, False)


def test_asking_cuts_what_is_known_until_an_answer_says_more() -> None:
    peer = PeerSequence(known_length=3)
    assert peer.position(list(range(9))).base_length == 3
    peer.learn(8)
    assert peer.position(list(range(10))).base_length == 8
    peer.limit(2)
    assert list(peer.position([7, 8, 9]).tail) == [9]


def test_a_position_for_fewer_tokens_ends_with_the_last_of_them() -> None:
    peer, tokens = PeerSequence(known_length=6), list(range(10))
    for length, base, tail in ((None, 6, [6, 7, 8, 9]), (8, 6, [6, 7]), (6, 5, [5]), (3, 2, [2]), (1, 0, [0])):
        position = peer.position(tokens, length)
        assert (position.base_length, list(position.tail)) == (base, tail), length


def test_what_is_known_only_grows_by_learning_and_only_shrinks_by_limits() -> None:
    peer = PeerSequence(known_length=5)
    peer.learn(3)
    assert peer.known_length == 5
    peer.limit(9)
    assert peer.known_length == 5


def test_a_refusal_is_mended_by_what_it_names() -> None:
    stated = [StatedRule(SamplingRule(), 1)]
    peer = PeerSequence("here", is_open=True, round=4, known_length=9, rules=list(stated))
    handle = peer.handle
    peer.correct(handle, "SEQUENCE_TOO_SHORT", {"cached_length": "7"})
    assert (peer.handle, peer.is_open, peer.known_length, peer.rules) == (handle, True, 7, stated)
    peer.correct(handle, "UNKNOWN_RULE", {})
    assert (peer.handle, peer.is_open, peer.known_length, peer.rules) == (handle, True, 7, [])
    peer.rules = list(stated)
    peer.correct(handle, "SEQUENCE_TOO_SHORT", {})
    assert (peer.handle, peer.known_length, peer.next_round()) == (handle, 0, 5)
    peer.learn(8)
    peer.correct("another", "UNKNOWN_HANDLE", {})
    assert (peer.handle, peer.is_open, peer.known_length) == (handle, True, 8)
    peer.correct(handle, "UNKNOWN_HANDLE", {})
    assert peer.handle != handle and peer.address == "here"
    assert (peer.is_open, peer.known_length, peer.rules, peer.next_round(), peer.next_round()) == (False, 0, [], 1, 2)


def test_every_sequence_has_a_name_of_its_own() -> None:
    assert len({PeerSequence().handle for _ in range(100)}) == 100


def test_a_forgotten_peer_gets_everything_again() -> None:
    peer = PeerSequence(is_open=True, known_length=4)
    known = peer.handle
    peer.forget()
    assert peer.handle != known and not peer.is_open
    assert list(peer.position([1, 2, 3]).tail) == [1, 2, 3]


def test_the_breaker_lets_one_probe_after_each_pause_which_is_twice_as_long_each_time() -> None:
    clock = Clock()
    breaker = Breaker(first_pause=1, longest_pause=3, clock=clock, jitter=lambda seconds: seconds)
    assert breaker.is_closed and not breaker.is_half_open
    breaker.record_failure()
    for pause in (1, 2, 3, 3):
        clock.now += pause - 0.1
        assert not breaker.is_closed and not breaker.is_half_open
        clock.now += 0.2
        assert not breaker.is_closed and breaker.is_half_open
        breaker.record_probe()
        assert not breaker.is_half_open
    breaker.record_success()
    assert breaker.is_closed
    breaker.record_failure()
    clock.now += 1
    assert breaker.is_half_open, "an answer makes pauses short again"


def test_many_failures_at_once_open_the_breaker_once() -> None:
    clock = Clock()
    breaker = Breaker(first_pause=1, longest_pause=60, clock=clock, jitter=lambda seconds: seconds)
    for _ in range(50):
        breaker.record_failure()
    clock.now += 1
    assert breaker.is_half_open


def test_callers_refused_together_are_told_different_times_to_retry() -> None:
    waits = {round(jittered(1.0), 3) for _ in range(100)}
    assert len(waits) > 20 and all(0.75 <= wait <= 1.25 for wait in waits)


def test_a_lease_ends_when_idle_and_use_renews_it() -> None:
    clock = Clock()
    leases = Leases(clock)
    leases.grant("a", 10)
    clock.now += 9
    leases.renew("a")
    clock.now += 9
    assert leases.expired() == []
    clock.now += 1
    assert leases.expired() == ["a"]
    with pytest.raises(UnknownHandleError):
        leases.renew("a")
    leases.extend("a")
    assert leases.expired() == []
    leases.remove("a")
    leases.extend("a")
    assert len(leases) == 0
