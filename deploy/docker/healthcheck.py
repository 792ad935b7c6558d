"""Exit 0 if the gRPC health service at host:port says SERVING:
``python healthcheck.py localhost:50052``.

A service that listens by TLS is asked at its admin address, in plaintext:
SLIPSTREAM_VERIFIER_ADMIN_ADDRESS=127.0.0.1:50062.
"""

from __future__ import annotations

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_SECONDS = 4.0


def is_serving(address: str) -> bool:
    """True if the whole server at ``address`` serves; False too if it cannot be asked."""
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)  # type: ignore[attr-defined]
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def address_to_ask(address: str) -> str:
    """The service's admin address where it has one, else ``address``."""
    admins = (os.environ.get(f"SLIPSTREAM_{kind}_ADMIN_ADDRESS") for kind in ("ORCHESTRATOR", "VERIFIER", "DRAFT"))
    return next(filter(None, admins), address)


if __name__ == "__main__":
    sys.exit(not is_serving(address_to_ask(sys.argv[1])))
