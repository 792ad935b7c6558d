"""How a process is told from others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.processes.process_slot import ProcessSlot, address_to_reach, owner_of


def test_who_comes_to_an_address_after_another_is_its_successor() -> None:
    first, second, other = owner_of("127.0.0.1:1"), owner_of("127.0.0.1:1"), owner_of("127.0.0.1:2")
    assert first.place == second.place != other.place
    assert len({first.id, second.id, other.id}) == 3 and {len(each.id) for each in (first, second, other)} == {16}


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("127.0.0.1:0", "127.0.0.1:7"),
        ("localhost:7", "localhost:7"),
        ("[::1]:0", "[::1]:7"),
        ("0.0.0.0:0", f"{socket.gethostname()}:7"),
        ("[::]:7", f"{socket.gethostname()}:7"),
    ],
)
def test_an_address_says_where_others_reach_it(address: str, reached: str) -> None:
    assert address_to_reach(address, 7) == reached


def test_siblings_are_reached_by_their_sockets_files_and_others_where_they_say() -> None:
    alone = ProcessSlot(1, 2, Path("/run/a"))
    assert alone.own_address == "unix:/run/a/1"
    known = ProcessSlot(1, 2, Path("/run/a"), advertised="here:60")
    assert known.own_address == "here:61"
    for slot in (alone, known):
        assert slot.sibling_address("unix:/run/a/0") == "unix:/run/a/0"
        assert slot.sibling_address("unix:/run/b/0") is None and slot.sibling_address("there:60") is None
    found = [known.sibling_address(f"here:{port}") for port in (59, 60, 61, 62)]
    assert found == [None, "unix:/run/a/0", "unix:/run/a/1", None]
    assert alone.sibling_address("here:60") is None
