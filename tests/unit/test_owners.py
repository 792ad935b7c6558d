"""Which peer holds the open sequences: none keeps another from its share, and a peer that has gone
keeps nothing for long."""

from __future__ import annotations

import random
from collections import Counter

from slipstream.engine.owners import Owners
from tests.clock import Clock

GRACE = 30.0


def used(owners: Owners, handle: str, name: str) -> None:
    """A handle that has been opened and has had an answer."""
    owners.add_handle(handle, name)
    owners.mark_busy(handle)
    owners.mark_idle(handle, answered=True)


def make_room(owners: Owners, name: str) -> str:
    giver = owners.handle_to_evict(name)
    assert giver is not None
    owners.remove_handle(giver)
    return giver


def test_an_unused_handle_is_evicted_first_from_any_owner() -> None:
    owners = Owners(GRACE)
    for index in range(5):
        used(owners, f"used {index}", "many")
    owners.add_handle("never asked", "few")
    owners.add_handle("failed", "few")
    owners.mark_busy("failed")
    owners.mark_idle("failed", answered=False)
    assert [make_room(owners, "new") for _ in range(3)] == ["never asked", "failed", "used 0"]


def test_a_handle_that_was_of_use_once_stays_so_when_a_round_fails() -> None:
    owners = Owners(GRACE)
    used(owners, "used", "a")
    owners.mark_busy("used")
    owners.mark_idle("used", answered=False)
    owners.add_handle("unused", "a")
    assert owners.handle_to_evict("a") == "unused"


def test_a_handle_that_ended_and_is_opened_again_was_never_of_use() -> None:
    owners = Owners(GRACE)
    used(owners, "old", "a")
    used(owners, "again", "a")
    owners.remove_handle("again")
    owners.add_handle("again", "a")
    owners.mark_busy("again")
    owners.mark_idle("again", answered=False)
    assert owners.handle_to_evict("a") == "again"


def test_the_least_recently_used_is_evicted_and_none_at_work() -> None:
    owners = Owners(GRACE)
    for handle in "abcd":
        used(owners, handle, "one")
    owners.mark_busy("a")
    owners.mark_idle("a", answered=True)
    owners.mark_busy("b")
    owners.add_handle("e", "one")
    owners.mark_busy("e")
    assert [make_room(owners, "one") for _ in range(3)] == ["c", "d", "a"]
    assert owners.handle_to_evict("one") is None
    owners.mark_idle("e", answered=False)
    assert owners.handle_to_evict("one") == "e"


def test_the_owner_of_most_handles_loses_first_and_never_to_one_that_holds_more() -> None:
    owners = Owners(GRACE)
    for index in range(6):
        used(owners, f"flood {index}", "flood")
    taken = []
    for index in range(6):
        taken.append(make_room(owners, "new"))
        used(owners, f"new {index}", "new")
    assert taken == [*(f"flood {index}" for index in range(3)), *(f"new {index}" for index in range(3))]
    for index in range(3, 6):
        owners.mark_busy(f"flood {index}")
    assert owners.handle_to_evict("flood") is None, "as many as the other holds are at work"
    assert owners.handle_to_evict("third") == "new 3"


def test_owners_that_all_want_more_end_with_equal_shares() -> None:
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
        owners.record_connection(name)
        owners.record_connection(name)
        used(owners, f"{name} 1", name)
        owners.add_handle(f"{name} 2", name)
    owners.record_disconnection("gone")
    owners.record_disconnection("there")
    clock.now += GRACE
    assert owners.orphaned_handles() == {}, "each has a connection left"
    owners.record_disconnection("gone")
    clock.now += GRACE - 0.1
    assert owners.orphaned_handles() == {}
    clock.now += 0.1
    assert owners.orphaned_handles() == {"gone": ["gone 1", "gone 2"]}


def test_an_owner_that_comes_back_within_the_grace_loses_nothing_and_has_all_of_it_again() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    owners.record_connection("one")
    used(owners, "a", "one")
    for _ in range(3):
        owners.record_disconnection("one")
        clock.now += GRACE - 1
        assert owners.orphaned_handles() == {}
        owners.record_connection("one")
        clock.now += 10 * GRACE
        assert owners.orphaned_handles() == {}


def test_work_for_an_owner_that_has_gone_ends_with_its_current_item() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    owners.record_connection("gone")
    owners.add_handle("a", "gone")
    owners.mark_busy("a")
    owners.record_disconnection("gone")
    clock.now += GRACE
    assert owners.orphaned_handles() == {}
    owners.mark_idle("a", answered=True)
    assert owners.orphaned_handles() == {"gone": ["a"]}


def test_a_handle_opened_for_an_owner_that_has_gone_ends_after_the_grace() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    for name in ("gone", "back"):
        owners.record_connection(name)
        owners.record_disconnection(name)
        used(owners, f"late of {name}", name)
    clock.now += GRACE - 0.1
    assert owners.orphaned_handles() == {}
    owners.record_connection("back")
    clock.now += 0.1
    assert owners.orphaned_handles() == {"gone": ["late of gone"]}


def test_an_empty_owner_has_not_gone() -> None:
    clock = Clock()
    owners = Owners(GRACE, clock)
    used(owners, "a", "")
    clock.now += 10 * GRACE
    assert owners.orphaned_handles() == {}


def test_nothing_is_kept_of_owners_that_have_neither_connections_nor_handles() -> None:
    owners = Owners(GRACE)
    for number in range(3):
        owners.record_connection(str(number))
        used(owners, f"handle {number}", str(number))
    owners.record_disconnection("0")
    owners.remove_handle("handle 0")
    owners.remove_handle("handle 1")
    owners.record_disconnection("1")
    assert len(owners) == 1
    owners.remove_handle("handle 2")
    owners.remove_handle("handle 2")
    assert len(owners) == 1, "its connection is left"
    assert owners.handle_to_evict("2") is None
