"""Exit 0 if the gRPC health service at host:port says SERVING, or if a GET of a URL gets 200:
``python healthcheck.py localhost:50052``, ``python healthcheck.py http://localhost:8000/health``.

A service that listens by TLS is asked at its admin address, in plaintext:
SLIPSTREAM_VERIFIER_ADMIN_ADDRESS=127.0.0.1:50062. A gateway that listens by TLS is asked by TLS.
The name in its certificate does not count.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_SECONDS = 4.0
_HTTP_TIMEOUT_SECONDS = 7.0
"""Longer than a gateway waits for its orchestrator before it says that it has none."""


def is_serving(address: str) -> bool:
    """True if the whole server at ``address`` serves; False too if it cannot be asked."""
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)  # type: ignore[attr-defined]
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def is_answering(url: str) -> bool:
    """True if a GET of ``url`` is answered with 200; False too if it cannot be asked."""
    if os.environ.get("SLIPSTREAM_GATEWAY_TLS_CERTIFICATE"):
        url = url.replace("http:", "https:", 1)
    own = ssl._create_unverified_context()  # it asks this container alone
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=own))
    try:
        with opener.open(url, timeout=_HTTP_TIMEOUT_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def address_to_ask(address: str) -> str:
    """The service's admin address where it has one, else ``address``."""
    admins = (os.environ.get(f"SLIPSTREAM_{kind}_ADMIN_ADDRESS") for kind in ("ORCHESTRATOR", "VERIFIER", "DRAFT"))
    return next(filter(None, admins), address)


if __name__ == "__main__":
    asked = sys.argv[1]
    sys.exit(not (is_answering(asked) if asked.startswith("http:") else is_serving(address_to_ask(asked))))
