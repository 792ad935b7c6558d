"""The health check of the container images, against servers."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from proving.certificates import Authority
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


class _Gateway(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@pytest.mark.parametrize("certified", [False, True], ids=["plaintext", "tls"])
def test_the_gateways_health_check_asks_over_http(certified: bool, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gateway)
    environment = dict(os.environ)
    if certified:
        files = Authority(tmp_path, "public").issue("gateway", "gateway.example")
        environment["SLIPSTREAM_GATEWAY_TLS_CERTIFICATE"] = str(files.certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()

    def exit_code(path: str) -> int:
        url = f"http://localhost:{server.server_port}{path}"
        command = [sys.executable, DEPLOY / "docker" / "healthcheck.py", url]
        return subprocess.run(command, timeout=60, check=False, env=environment).returncode

    try:
        assert exit_code("/health") == 0
        assert exit_code("/other") == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert exit_code("/health") == 1
