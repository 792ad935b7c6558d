"""nginx, Caddy and Envoy with the files of deploy/, in front of a gateway: they pass events on at
once, and tell the gateway that a caller has left."""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from proving.certificates import Authority
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from tests.either_client import until
from tests.envoy import envoy_process
from tests.gateway_process import gateway_process
from tests.proxies import proxy_process

SLOW = PairSettings(target="arithmetic:ends=0&forward_ms=1000", draft="")
LONG = 8000
"""Tokens of an answer that takes two hours."""


@dataclass(frozen=True, slots=True)
class Proxied:
    """A proxy, and the orchestrator that is far behind it."""

    address: str
    orchestrator: str
    authority: Authority

    def connect(self) -> HTTPSConnection:
        """Return a connection to the proxy."""
        port = int(self.address.rpartition(":")[2])
        trust = ssl.create_default_context(cafile=self.authority.file)
        return HTTPSConnection("localhost", port, timeout=60, context=trust)

    def running(self) -> int:
        """Return how many turns run at the orchestrator."""
        with Client(self.orchestrator) as client:
            return sum(process.running_turn_count for process in client.status().processes)

    def generated(self) -> int:
        """Return how many tokens the orchestrator has generated."""
        with Client(self.orchestrator) as client:
            return sum(process.generated_token_count for process in client.status().processes)


@pytest.fixture(scope="module")
def services() -> Iterator[LocalServices]:
    with LocalServices(SLOW) as local:
        yield local


@contextmanager
def standing_still(services: LocalServices) -> Iterator[None]:
    """Inside, no token is computed."""
    verifier = services.services["verifier"].process
    verifier.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        verifier.send_signal(signal.SIGCONT)


@pytest.fixture(params=["nginx", "caddy", "envoy"])
def proxied(request: pytest.FixtureRequest, services: LocalServices, tmp_path: Path) -> Iterator[Proxied]:
    authority = Authority(tmp_path, "public")
    with ExitStack() as stack:
        if request.param == "envoy":  # which reaches a gateway elsewhere, by TLS
            flags = authority.issue("gateway").flags("tls")
            trust = ssl.create_default_context(cafile=authority.file)
            by_tls = stack.enter_context(gateway_process(services.orchestrator_address, *flags, tls=trust))
            address = stack.enter_context(envoy_process("gateway.yaml", by_tls.address, authority, tmp_path))
            yield Proxied(address, services.orchestrator_address, authority)
            return
        gateway = stack.enter_context(gateway_process(services.orchestrator_address))
        proxy = proxy_process(request.param, gateway.address, services.orchestrator_address, authority, tmp_path)
        yield Proxied(stack.enter_context(proxy), services.orchestrator_address, authority)


def test_events_come_at_once_and_a_caller_that_leaves_ends_its_turn(proxied: Proxied, services: LocalServices) -> None:
    connection = proxied.connect()
    connection.request("GET", "/v1/models")
    model = json.loads(connection.getresponse().read())["data"][0]["id"]
    question = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": LONG}
    before = proxied.generated()
    connection.request("POST", "/v1/chat/completions", json.dumps(question), {"content-type": "application/json"})
    answer = connection.getresponse()
    until(lambda: proxied.generated() > before)
    with standing_still(services):  # what a proxy holds back now, it holds back for good
        event = answer.readline()
        assert event.startswith(b"data: {"), event
    assert proxied.running() == 1
    answer.close()
    connection.close()
    until(lambda: proxied.running() == 0)
    assert proxied.generated() < before + LONG


def test_strangers_see_no_metrics(proxied: Proxied) -> None:
    found = {}
    with closing(proxied.connect()) as connection:
        for path in ("/health", "/metrics"):
            connection.request("GET", path)
            with connection.getresponse() as answer:
                answer.read()
                found[path] = answer.status
    assert found == {"/health": 200, "/metrics": 404}


@pytest.mark.parametrize("proxied", ["nginx", "caddy"], indirect=True)
def test_grpc_goes_through_to_the_orchestrator(proxied: Proxied) -> None:
    address = f"localhost:{proxied.address.rpartition(':')[2]}"
    with Client(address, credentials=proxied.authority.trust()) as client, client.chat() as chat:
        assert chat.send("hello", Settings(max_token_count=2)).wait().generated_token_count == 2
