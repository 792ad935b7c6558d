"""How a process is told from others."""

from __future__ import annotations

import socket

import pytest

from orchestrator.processes.place import address_to_reach, owner_of


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
