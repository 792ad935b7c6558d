"""A new session lives where the beginning of its prompt has been read, unless too many do."""

from __future__ import annotations

from orchestrator.peers.prefixes import Prefixes
from orchestrator.peers.sequence import PeerSequence
from orchestrator.peers.verifiers import Verifiers
from tests.scripted_peers import Verifier

ONE, OTHER = list(range(100, 400)), list(range(500, 800))


def placed(verifiers: Verifiers, tokens: list[int]) -> str:
    sequence = PeerSequence()
    return verifiers.verifier_of(sequence, tokens).address


def two() -> Verifiers:
    verifiers = Verifiers([Verifier("a"), Verifier("b")])  # type: ignore[list-item]
    for peer in verifiers.peers:
        peer.on_reachable_changed = lambda callback: None  # type: ignore[method-assign]
        verifiers.admit(peer)
    return verifiers


def test_the_longest_beginning_that_is_known_counts_and_what_is_short_does_not() -> None:
    prefixes = Prefixes()
    prefixes.learn(ONE, "a")
    prefixes.learn([*ONE[:128], *OTHER], "b")
    assert prefixes.find([*ONE, 1, 2, 3]) == {"a"}
    assert prefixes.find([*ONE[:128], *OTHER, 1]) == {"b"}
    assert prefixes.find([*ONE[:130], 7]) == {"a", "b"}
    assert prefixes.find(ONE[:63]) == prefixes.find(OTHER) == set()
    prefixes.forget("a")
    assert prefixes.find([*ONE[:130], 7]) == {"b"}


def test_the_least_recently_read_are_forgotten() -> None:
    prefixes = Prefixes(most=4)
    prefixes.learn(ONE[:128], "a")
    prefixes.learn(OTHER[:128], "b")
    prefixes.learn(ONE[:128], "a")
    prefixes.learn(list(range(128)), "c")
    assert prefixes.find(ONE) == {"a"} and prefixes.find(OTHER) == set()


def test_sessions_that_begin_alike_live_together_until_the_other_has_read_it_too() -> None:
    verifiers = two()
    assert [placed(verifiers, ONE) for _ in range(6)] == ["a", "a", "b", "b", "a", "b"]
    assert verifiers.session_counts == {"a": 3, "b": 3}


def test_others_go_where_the_fewest_are() -> None:
    verifiers = two()
    assert [placed(verifiers, tokens) for tokens in (ONE, OTHER, ONE, OTHER)] == ["a", "b", "a", "b"]
    assert placed(verifiers, [1, 2, 3]) == "a"
