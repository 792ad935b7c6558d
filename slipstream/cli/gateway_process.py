"""The gateway's process: it answers over HTTP when it serves."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from slipstream.cli.service_process import Service

GATEWAY = "gateway"
TLS_FLAG = "--tls-certificate"
_ASK_SECONDS = 1.0
_EVERY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class GatewayProcess(Service):
    """A gateway in a process of its own."""

    def __init__(self, address: str, flags: Sequence[str], environment: dict[str, str]) -> None:
        super().__init__(GATEWAY, GATEWAY, address, flags, environment)
        self._is_tls = TLS_FLAG in flags

    @property
    def url(self) -> str:
        """Return the address for a browser on this machine, without a slash at its end."""
        return f"{'https' if self._is_tls else 'http'}://{self._place()}"

    def health(self, stack: ExitStack) -> Callable[[], bool]:
        """Return a function that tells whether the gateway answers."""

        def is_serving() -> bool:
            try:
                return self._get("/version")[0] == http.client.OK
            except (OSError, http.client.HTTPException):
                return False

        return is_serving

    def model_name(self) -> str:
        """Return the name of the served model. Empty: only callers with a token may know it."""
        status, body = self._get("/v1/models")
        return str(json.loads(body)["data"][0]["id"]) if status == http.client.OK else ""

    def _get(self, path: str) -> tuple[int, bytes]:
        with closing(self._connection()) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._is_tls:
            return http.client.HTTPConnection(self._place(), timeout=_ASK_SECONDS)
        # Its certificate may name another host, and nothing is said here that others may not read.
        unverified = ssl._create_unverified_context()
        return http.client.HTTPSConnection(self._place(), timeout=_ASK_SECONDS, context=unverified)

    def _place(self) -> str:
        host, _, port = self.address.rpartition(":")
        return f"{_EVERY_HOST.get(host, host)}:{port}"
