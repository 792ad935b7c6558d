"""Who holds the open sequences: nobody keeps another from its share, and who has gone keeps nothing
for long."""

from __future__ import annotations

import random
from collections import Counter

from slipstream.engine.owners import Owners
from tests.clock import Clock

GRACE = 30.0


def used(owners: Owners, handle: str, name: str) -> None:
    """A handle that has been opened and has had an answer."""
    owners.opened(handle, name)
    owners.works(handle)
    owners.rests(handle, answered=True)


def make_room(owners: Owners, name: str) -> str:
    giver = owners.giver(name)
    assert giver is not None
    owners.ended(giver)
    return giver


def test_what_was_never_of_use_gives_way_first_whoever_holds_it() -> None:
    owners = Owners(GRACE)
    for index in range(5):
        used(owners, f"used {index}", "many")
    owners.opened("never asked", "few")
    owners.opened("failed", "few")
    owners.works("failed")
    owners.rests("failed", answered=False)
    assert [make_room(owners, "new") for _ in range(3)] == ["never asked", "failed", "used 0"]


def test_a_handle_that_was_of_use_once_stays_so_when_a_round_fails() -> None:
    owners = Owners(GRACE)
    used(owners, "used", "a")
    owners.works("used")
    owners.rests("used", answered=False)
    owners.opened("unused", "a")
    assert owners.giver("a") == "unused"


def test_a_handle_that_ended_and_is_opened_again_was_never_of_use() -> None:
    owners = Owners(GRACE)
    used(owners, "old", "a")
    used(owners, "again", "a")
    owners.ended("again")
    owners.opened("again", "a")
    owners.works("again")
    owners.rests("again", answered=False)
    assert owners.giver("a") == "again"


def test_the_least_recently_used_gives_way_and_none_at_work() -> None:
    owners = Owners(GRACE)
    for handle in "abcd":
        used(owners, handle, "one")
    owners.works("a")
    owners.rests("a", answered=True)
    owners.works("b")
    owners.opened("e", "one")
    owners.works("e")
    assert [make_room(owners, "one") for _ in range(3)] == ["c", "d", "a"]
    assert owners.giver("one") is None
    owners.rests("e", answered=False)
    assert owners.giver("one") == "e"


def test_whoever_holds_most_gives_way_and_nobody_takes_from_one_that_holds_less() -> None:
    owners = Owners(GRACE)
    for index in range(6):
        used(owners, f"flood {index}", "flood")
    taken = []
    for index in range(6):
        taken.append(make_room(owners, "new"))
        used(owners, f"new {index}", "new")
    assert taken == [*(f"flood {index}" for index in range(3)), *(f"new {index}" for index in range(3))]
    for index in range(3, 6):
        owners.works(f"flood {index}")
    assert owners.giver("flood") is None, "as many as the other holds are at work"
    assert owners.giver("third") == "new 3"


def test_in_the_end_all_who_want_more_than_there_is_hold_the_same() -> None:
    for seed in range(20):
        rng, owners = random.Random(seed), Owners(GRACE)
        held: Counter[str] = Counter()
        of: dict[str, str] = {}
        for number in range(2_000):
            name = rng.choice(["a", "b", "b", "b", "c", "c"])
            if len(of) == 60:
                held[of.pop(make_room(owners, name))] -= 1
            used(owners, str(number), name)
            of[str(number)] = name
            held[name] += 1
        assert held == {"a": 20, "b": 20, "c": 20}


def test_the_idle_handles_of_an_owner_that_has_gone_end_after_the_grace_and_not_before() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    for name in ("gone", "there"):
        owners.came(name)
        owners.came(name)
        used(owners, f"{name} 1", name)
        owners.opened(f"{name} 2", name)
    owners.went("gone")
    owners.went("there")
    clock.now += GRACE
    assert owners.orphans() == {}, "each has a connection left"
    owners.went("gone")
    clock.now += GRACE - 0.1
    assert owners.orphans() == {}
    clock.now += 0.1
    assert owners.orphans() == {"gone": ["gone 1", "gone 2"]}


def test_an_owner_that_comes_back_within_the_grace_loses_nothing_and_has_all_of_it_again() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    owners.came("one")
    used(owners, "a", "one")
    for _ in range(3):
        owners.went("one")
        clock.now += GRACE - 1
        assert owners.orphans() == {}
        owners.came("one")
        clock.now += 10 * GRACE
        assert owners.orphans() == {}


def test_what_is_at_work_for_an_owner_that_has_gone_ends_once_it_rests() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    owners.came("gone")
    owners.opened("a", "gone")
    owners.works("a")
    owners.went("gone")
    clock.now += GRACE
    assert owners.orphans() == {}
    owners.rests("a", answered=True)
    assert owners.orphans() == {"gone": ["a"]}


def test_what_is_opened_for_an_owner_that_has_just_gone_ends_after_the_grace_unless_it_comes_back() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    for name in ("gone", "back"):
        owners.came(name)
        owners.went(name)
        used(owners, f"late of {name}", name)
    clock.now += GRACE - 0.1
    assert owners.orphans() == {}
    owners.came("back")
    clock.now += 0.1
    assert owners.orphans() == {"gone": ["late of gone"]}


def test_nobody_has_not_gone() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    used(owners, "a", "")
    clock.now += 10 * GRACE
    assert owners.orphans() == {}


def test_nothing_is_kept_of_owners_that_have_neither_connections_nor_handles() -> None:
    owners = Owners(GRACE)
    for number in range(3):
        owners.came(str(number))
        used(owners, f"handle {number}", str(number))
    owners.went("0")
    owners.ended("handle 0")
    owners.ended("handle 1")
    owners.went("1")
    assert len(owners) == 1
    owners.ended("handle 2")
    owners.ended("handle 2")
    assert len(owners) == 1, "its connection is left"
    assert owners.giver("2") is None
