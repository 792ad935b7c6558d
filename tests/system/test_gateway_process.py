"""The gateway as a process: how it ends, and a certificate that is replaced while it runs."""

from __future__ import annotations

import http.client
import signal
import ssl
import time
from pathlib import Path

import pytest

from proving.certificates import Authority
from tests.gateway_process import gateway_process

AWAY = "127.0.0.1:1"
"""Address without an orchestrator, which a gateway needs only for what it is asked."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_ends_with_status_0(number: signal.Signals) -> None:
    with gateway_process(AWAY) as gateway:
        gateway.process.send_signal(number)
        assert gateway.process.wait(30) == 0


def shown_certificate(address: str, trusted: ssl.SSLContext) -> bytes | None:
    """Return the certificate that a new connection is shown."""
    connection = http.client.HTTPSConnection(address, timeout=30, context=trusted)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        return connection.sock.getpeercert(binary_form=True)
    finally:
        connection.close()


def test_new_connections_are_shown_a_certificate_that_was_replaced(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "own")
    first, second = authority.issue("first"), authority.issue("second")
    trusted = ssl.create_default_context(cafile=authority.file)
    flags = ["--tls-certificate", str(first.certificate), "--tls-key", str(first.key)]
    with gateway_process(AWAY, *flags, tls=trusted) as gateway:
        before = shown_certificate(gateway.address, trusted)
        first.write(second.certificate.read_bytes(), second.key.read_bytes())
        give_up = time.monotonic() + 30
        while shown_certificate(gateway.address, trusted) == before:
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert gateway.send("/version").status == 200
        first.certificate.write_text("no certificate")
        assert gateway.send("/version").status == 200, "the last good one stays in use"
