"""A host name stands for all its addresses, and for those that it has now."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from orchestrator.processes.host_names import HostNames, resolve
from slipstream.rpc.connector import PLAINTEXT, Connector


class Resolver:
    """Says what the test has put down, and fails for what it has not."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise socket.gaierror("no such name")
        return [f"{address}:{port}" for address in self.addresses[host]]


async def test_a_name_with_several_addresses_is_as_many_and_one_with_a_single_one_is_itself() -> None:
    names = HostNames(
        ["many:1", "dns:other:2", "dns:///third:3", "10.0.0.9:4"],
        Resolver(many=["10.0.0.1", "10.0.0.2"], other=["10.0.0.3"]),
    )
    assert names.addresses == ["many:1", "other:2", "third:3", "10.0.0.9:4"]
    await names.resolve_all()
    assert names.addresses == ["10.0.0.1:1", "10.0.0.2:1", "other:2", "third:3", "10.0.0.9:4"]


async def test_what_cannot_be_looked_up_stands_for_what_it_stood_for() -> None:
    resolver = Resolver(many=["10.0.0.1", "10.0.0.2"])
    names = HostNames(["many:1", "many:1"], resolver)
    await names.resolve_all()
    del resolver.addresses["many"]
    await names.resolve_all()
    assert names.addresses == ["10.0.0.1:1", "10.0.0.2:1"]
    resolver.addresses["many"] = ["10.0.0.2", "10.0.0.3"]
    await names.resolve_all()
    assert names.addresses == ["10.0.0.2:1", "10.0.0.3:1"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "a.localhost:1", "unix:/there", "nothing"]
)
async def test_addresses_and_this_machines_own_names_are_not_looked_up(address: str) -> None:
    resolver = Resolver()
    names = HostNames([address], resolver)
    await names.resolve_all()
    assert names.addresses == [address] and not resolver.asked and not names.may_change


async def test_a_service_that_listens_on_both_families_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*answers: tuple[socket.AddressFamily, str]) -> Any:
        return lambda *_, **__: [(family, socket.SOCK_STREAM, 6, "", (host, 5)) for family, host in answers]

    both = found((socket.AF_INET6, "::2"), (socket.AF_INET, "10.0.0.2"), (socket.AF_INET, "10.0.0.1"))
    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert await resolve("name", 5) == ["10.0.0.1:5", "10.0.0.2:5"]
    monkeypatch.setattr(socket, "getaddrinfo", found((socket.AF_INET6, "::2"), (socket.AF_INET6, "::3")))
    assert await resolve("name", 5) == ["[::2]:5", "[::3]:5"]


async def test_an_address_that_was_found_for_a_name_has_that_names_certificate() -> None:
    names = HostNames(["many:1", "one:1", "10.0.0.9:1"], Resolver(many=["10.0.0.1", "10.0.0.2"], one=["10.0.0.3"]))
    await names.resolve_all()
    assert [names.host_of(address) for address in names.addresses] == ["many", "many", "", ""]
    shown = [PLAINTEXT.for_host(host).name for host in ("many", "")]
    assert shown == ["many", ""]
    assert Connector(name="told").for_host("many").name == "told"


async def test_a_name_that_shrinks_to_one_address_keeps_it_and_its_sessions() -> None:
    resolver = Resolver(many=["10.0.0.1", "10.0.0.2"])
    names = HostNames(["many:1"], resolver)
    await names.resolve_all()
    resolver.addresses["many"] = ["10.0.0.1"]
    await names.resolve_all()
    assert names.addresses == ["10.0.0.1:1"]
    resolver.addresses["many"] = ["10.0.0.1", "10.0.0.3"]
    await names.resolve_all()
    assert names.addresses == ["10.0.0.1:1", "10.0.0.3:1"]


@pytest.mark.parametrize("name", ["a..b:1", f"{'x' * 64}:1", "elsewhere.invalid:99999999999999999999"])
async def test_a_name_that_can_be_none_is_no_end_of_the_process(name: str) -> None:
    names = HostNames([name], resolve)
    await names.resolve_all()
    assert names.addresses == [name]


async def test_names_may_be_added_and_removed_while_they_are_looked_up() -> None:
    async def change(host: str, port: int) -> list[str]:
        names.add("new:1")
        names.remove("many:1")
        names.remove("other:1")
        return ["10.0.0.1:1", "10.0.0.2:1"]

    names = HostNames(["many:1", "other:1", "third:1"], change)
    await names.resolve_all()
    assert names.addresses == ["10.0.0.1:1", "10.0.0.2:1", "new:1"], "the third name's, and the new one as it is"
