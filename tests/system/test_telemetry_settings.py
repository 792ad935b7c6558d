"""Services that are told by OpenTelemetry's variables where their telemetry goes, and how."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, Settings
from tests.system.conftest import PAPER_PAIR
from tests.trace_collector import collecting


def run_a_turn(environment: dict[str, str]) -> None:
    pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, environment=environment)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        for _ in range(1000):  # a turn that begins before the draft is reached goes on without it
            if client.generate("hello", Settings(max_token_count=10, draft_length=2)).wait().draft_token_count:
                break


def test_where_no_traces_are_wanted_none_are_sent() -> None:
    with collecting() as (collector, environment):
        run_a_turn({**environment, "OTEL_TRACES_EXPORTER": "none"})
    assert not collector.received


@contextmanager
def collecting_by_http() -> Iterator[tuple[dict[str, list[bytes]], str]]:
    """Bodies by path, and the address that takes them."""
    bodies: dict[str, list[bytes]] = defaultdict(list)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies[self.path].append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield bodies, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_collector_that_speaks_http_gets_traces_and_metrics_of_all_services() -> None:
    with collecting_by_http() as (bodies, address):
        run_a_turn(
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": address,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_METRICS_EXPORTER": "otlp",
            }
        )
    traced = {
        str(attribute.value.string_value)
        for body in bodies["/v1/traces"]
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }
    measured = {
        metric.name
        for body in bodies["/v1/metrics"]
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert traced == {"orchestrator", "draft", "verifier"}
    assert {"slipstream_generation_tokens", "slipstream_num_sequences"} <= measured


def test_a_protocol_that_there_is_not_keeps_a_service_from_starting_by_one_line() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    command = [sys.executable, "-P", "-m", "orchestrator", "--address", free_address(), "--store", "memory"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line == (
        "orchestrator: OTEL_EXPORTER_OTLP_PROTOCOL=http/json is not supported: set it to grpc or http/protobuf"
    )
