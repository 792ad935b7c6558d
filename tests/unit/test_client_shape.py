"""The two clients have one shape: the same names with the same arguments, awaited in the one and
not in the other."""

from __future__ import annotations

import inspect

import pytest

from slipstream.client import AsyncClient, AsyncReply, AsyncSession, Client, Reply, Session

PAIRS = [(Client, AsyncClient), (Session, AsyncSession), (Reply, AsyncReply)]


def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
    """Public ones and __init__, with their arguments; how a context is entered is the languages'
    own affair."""
    found = inspect.getmembers(kind, inspect.isfunction)
    made_by_users = kind in (Client, AsyncClient)
    shown = {
        name: member for name, member in found if not name.startswith("_") or (made_by_users and name == "__init__")
    }
    return {name: list(inspect.signature(member).parameters.values()) for name, member in shown.items()}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods_with_the_same_arguments(blocking: type, awaited: type) -> None:
    assert methods(blocking) == methods(awaited)
    properties = [
        {name for name, member in inspect.getmembers(kind, lambda member: isinstance(member, property))}
        for kind in (blocking, awaited)
    ]
    assert properties[0] == properties[1]


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_method_of_the_asyncio_client_is_awaited_or_iterated(blocking: type, awaited: type) -> None:
    for name in methods(awaited):
        member = getattr(awaited, name)
        if name != "__init__":
            assert inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member), name
