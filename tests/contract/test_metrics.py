"""Metrics as Prometheus and an OTLP collector read them, over sockets."""

from __future__ import annotations

import time
import urllib.request
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from slipstream.cli.local import free_address
from slipstream.telemetry import instruments
from slipstream.telemetry.exposition import Exposition, MetricsAddressError
from tests.readings import some_readings


def test_prometheus_reads_what_was_counted_beside_the_process_own_metrics() -> None:
    address = free_address()
    with Exposition("test", address, some_readings):
        text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["slipstream_generation_tokens"].samples[0].value == 17
    rounds = {
        tuple(sample.labels[name] for name in instruments.ROUNDS.labels): sample.value
        for sample in families["slipstream_rounds"].samples
    }
    assert rounds == {("bonus", "draft"): 3, ("plain", "plain"): 4}
    verify = {(s.name.removeprefix("slipstream_verify_seconds"), s.labels.get("le")): s.value
              for s in families["slipstream_verify_seconds"].samples}  # fmt: skip
    assert verify["_count", None] == verify["_bucket", "+Inf"] == 3
    assert verify["_bucket", "0.0005"] == 1 and verify["_bucket", "0.02"] == 2 and verify["_bucket", "2.5"] == 2
    assert verify["_sum", None] == pytest.approx(9.0204)
    assert families["process_start_time_seconds"].samples[0].value > 1e9
    assert families["slipstream_num_sessions"].samples[0].value == 2


def test_a_taken_port_is_a_clear_error() -> None:
    address = free_address()
    with Exposition("test", address, some_readings), pytest.raises(MetricsAddressError, match=address):
        Exposition("test", address, some_readings).__enter__()
    with pytest.raises(MetricsAddressError, match="no port"):
        Exposition("test", "localhost", some_readings).__enter__()


class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what an OTLP exporter sends."""

    def __init__(self) -> None:
        self.got: list[metrics_service_pb2.ExportMetricsServiceRequest] = []

    def Export(
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        self.got.append(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.mark.parametrize("asked", [True, False])
def test_a_collector_is_told_where_that_is_asked_for_and_once_more_at_the_end(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    server, receiver, address = grpc.server(futures.ThreadPoolExecutor(1)), Receiver(), free_address()
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)
    server.add_insecure_port(address)
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{address}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    if asked:
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    try:
        with Exposition("test", "", some_readings):
            deadline = time.monotonic() + 60
            while asked and len(receiver.got) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            before = len(receiver.got)
        assert (len(receiver.got) > before) == asked
    finally:
        server.stop(0)
    if asked:
        (resource,) = receiver.got[-1].resource_metrics
        said = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
        assert said["service.name"] == "test"
        assert {metric.name for metric in resource.scope_metrics[0].metrics} >= {"slipstream_generation_tokens"}
