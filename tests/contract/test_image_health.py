"""The health check of the container images, against a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tools.check_deploy import DEPLOY


@pytest.fixture
def served() -> Iterator[tuple[health.HealthServicer, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_the_images_health_check_asks_the_health_service(served: tuple[health.HealthServicer, str]) -> None:
    servicer, address = served

    def exit_code(asked: str = address, **environment: str) -> int:
        command = [sys.executable, DEPLOY / "docker" / "healthcheck.py", asked]
        return subprocess.run(command, timeout=60, check=False, env={**os.environ, **environment}).returncode

    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    assert exit_code() == 0
    assert exit_code("127.0.0.1:1", SLIPSTREAM_DRAFT_ADMIN_ADDRESS=address) == 0, "where its port speaks TLS"
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert exit_code() == 1
