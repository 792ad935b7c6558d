"""A gateway as a process of its own, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slipstream.cli.local import free_address

_START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the gateway to a plain HTTP request. A body that is no JSON is a text."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        error = self.body["error"]
        assert isinstance(error, dict)
        return error


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A running gateway."""

    address: str
    process: subprocess.Popen[bytes]
    tls: ssl.SSLContext | None = None

    def send(
        self,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
    ) -> Answer:
        """Send a request, by default with POST if it has a body. Mappings are sent as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = (
            http.client.HTTPConnection(self.address, timeout=60)
            if self.tls is None
            else http.client.HTTPSConnection(self.address, timeout=60, context=self.tls)
        )
        try:
            connection.request(
                method or ("GET" if content is None else "POST"),
                path,
                content,
                {"content-type": "application/json", **(headers or {})},
            )
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            received = response.read()
            is_json = lower["content-type"].startswith("application/json")
            return Answer(response.status, lower, json.loads(received) if is_json else received.decode())
        finally:
            connection.close()


def running_requests(gateway: GatewayProcess) -> int:
    """Return the number of requests that a gateway is answering."""
    (found,) = re.findall(
        r"^slipstream_gateway_num_requests_running (\S+)", gateway.send("/metrics").body, re.MULTILINE
    )
    return int(float(found)) - 1  # this one


def stored_sessions(store: str) -> int:
    """Return the number of sessions in a SQLite store: also those of all answers that were not
    deleted."""
    with contextlib.closing(sqlite3.connect(store)) as database:
        (count,) = database.execute("SELECT count(*) FROM sessions").fetchone()
    assert isinstance(count, int)
    return count


@contextmanager
def gateway_process(
    orchestrator: str,
    *flags: str,
    address: str = "",
    tls: ssl.SSLContext | None = None,
    python: str = sys.executable,
) -> Iterator[GatewayProcess]:
    """A gateway in front of an orchestrator, which has answered once. ``tls`` trusts its
    certificate; ``python`` is the interpreter that runs it. Without an ``address`` it gets one."""
    address = address or free_address()
    command = [python, "-P", "-m", "gateway", "--orchestrator", orchestrator, "--address", address]
    process = subprocess.Popen([*command, *flags, "--log-level", "WARNING"])
    running = GatewayProcess(address, process, tls)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(running):
            assert process.poll() is None, "the gateway has ended"
            assert time.monotonic() < deadline, "the gateway does not answer"
            time.sleep(0.05)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()  # one that does not end would outlive the tests


def _answers(gateway: GatewayProcess) -> bool:
    try:
        return gateway.send("/version").status == 200
    except OSError:
        return False
