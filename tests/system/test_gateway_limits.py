"""A connection to the gateway costs a bounded time and memory, and holds up no other caller."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from slipstream.cli.local import LocalServices
from slipstream.client import Client
from tests.either_client import until
from tests.gateway_process import GatewayProcess, gateway_process, running_requests, stored_sessions
from tests.system.conftest import PAPER_PAIR

COMPLETIONS = "/v1/completions"
MIB = 2**20
IDLE_SECONDS = 1
MODEL = "\x01" * 80_000
"""A name of which JSON makes 480,000 characters, so that one event fills all buffers. Events become
fewer while a reader takes none: an answer is sent in one, if its turn is fast enough."""
SLOW_READERS = 32
TRICKLES = 100

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServices]:
    """An answer takes some seconds, so that it runs when a test looks."""
    store = tmp_path_factory.mktemp("store") / "sessions.db"
    target = f"{PAPER_PAIR.target}&forward_ms=0.5"
    with LocalServices(dataclasses.replace(PAPER_PAIR, target=target, store=str(store))) as local:
        yield local


@pytest.fixture(scope="module")
def gateway(services: LocalServices) -> Iterator[GatewayProcess]:
    with gateway_process(services.orchestrator_address, "--model-name", MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(services: LocalServices) -> Iterator[GatewayProcess]:
    """A gateway that closes connections soon."""
    flags = "--model-name", MODEL, "--idle-seconds", str(IDLE_SECONDS)
    with gateway_process(services.orchestrator_address, *flags) as running:
        yield running


@contextmanager
def connected(gateway: GatewayProcess, sent: str = "") -> Iterator[socket.socket]:
    """A connection with a small window, on which something was sent."""
    host, _, port = gateway.address.rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect((host, int(port)))
        connection.sendall(sent.encode())
        yield connection


def post(length: int, body: str = "") -> str:
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}"
    )
    return f"{head}\r\n\r\n{body}"


def stream(token_count: int) -> str:
    asked = {
        "model": MODEL,
        "prompt": [10, 20, 30],
        "max_tokens": token_count,
        "stream": True,
        "return_token_ids": True,
    }
    body = json.dumps(asked)
    return post(len(body), body)


def memory(gateway: GatewayProcess) -> int:
    return int(psutil.Process(gateway.process.pid).memory_info().rss)


def test_a_body_of_a_hundred_megabytes_gets_its_status_and_takes_no_memory(gateway: GatewayProcess) -> None:
    before = memory(gateway)
    answer = gateway.send(COMPLETIONS, b" " * (100 * MIB))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert memory(gateway) - before < 50 * MIB


@pytest.mark.parametrize("sent", ["GET /version HTTP/1.1\r\nx: ", post(9000, "{")], ids=["header", "body"])
def test_a_request_that_trickles_in_is_ended(hasty: GatewayProcess, sent: str) -> None:
    with connected(hasty, sent) as connection:
        connection.settimeout(0.2)
        for _ in range(TRICKLES):
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(b" ")
                    end = connection.recv(4096)
                except ConnectionError:
                    return
                assert end == b"" or b" 408 " in end
                return
    pytest.fail("the connection stays open")


def test_an_answer_of_which_nothing_is_taken_is_ended(services: LocalServices, hasty: GatewayProcess) -> None:
    with connected(hasty, stream(8000)) as connection:
        until(lambda: stored_sessions(services.settings.store) == 1)
        until(lambda: running_requests(hasty) == 0)
        until(lambda: stored_sessions(services.settings.store) == 0)
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                received += piece
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"[DONE]" not in received


def test_many_slow_readers_hold_up_no_other_caller(services: LocalServices, gateway: GatewayProcess) -> None:
    before = memory(gateway)
    with ExitStack() as stack, Client(services.orchestrator_address) as client:
        for _ in range(SLOW_READERS):
            stack.enter_context(connected(gateway, stream(300)))
        for _ in range(3):
            other = gateway.send(COMPLETIONS, {"model": MODEL, "prompt": [1, 2], "max_tokens": 5})
            assert other.body["usage"]["completion_tokens"] == 5
        until(lambda: running_requests(gateway) == SLOW_READERS)
        until(lambda: client.status().processes[0].running_turn_count == 0)  # their turns need no reader
        assert running_requests(gateway) == SLOW_READERS
        assert memory(gateway) - before < 100 * MIB
    until(lambda: running_requests(gateway) == 0)
    until(lambda: stored_sessions(services.settings.store) == 0)


def test_pipelined_requests_are_answered_one_after_another(gateway: GatewayProcess) -> None:
    count = 1000
    request = "GET /version HTTP/1.1\r\nhost: localhost\r\n"
    last = f"{request}connection: close\r\n\r\n"
    received = b""
    with connected(gateway, f"{request}\r\n" * (count - 1) + last) as connection:
        while piece := connection.recv(65536):
            received += piece
    assert received.count(b"HTTP/1.1 200 OK") == count


def test_a_header_that_never_ends_is_refused(gateway: GatewayProcess) -> None:
    def send_lines(connection: socket.socket) -> None:
        for _ in range(100_000):
            connection.sendall(b"a: b\r\n" * 1000)

    with (
        connected(gateway, "GET /version HTTP/1.1\r\nhost: localhost\r\n") as connection,
        pytest.raises(ConnectionError),
    ):
        send_lines(connection)
    assert gateway.send("/version").status == 200
