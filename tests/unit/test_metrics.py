"""Metrics: cheap to add to, read from any thread, shown to Prometheus and OTLP alike, and all of
them written down."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.sdk.resources import Resource
from prometheus_client.parser import text_string_to_metric_families

from slipstream.cli.local import free_address
from slipstream.telemetry import instruments
from slipstream.telemetry.exposition import Exposition, MetricsAddressError, otlp_metrics
from slipstream.telemetry.instruments import Instrument, Kind
from slipstream.telemetry.logs import configure_logging
from slipstream.telemetry.metrics import Distribution, Reading, reading
from tools.make_reference import DOCS
from tools.reference.metrics import page

ALL = {each.name: each for each in (*instruments.OF_THE_ORCHESTRATOR, *instruments.OF_A_MODEL_SERVICE)}


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=50))
def test_a_distribution_counts_each_value_in_the_first_bucket_that_reaches_it(values: list[tuple[float, int]]) -> None:
    made = Distribution((1.0, 2.0, 10.0))
    for value, count in values:
        made.observe(value)
        made.observe_all([value] * (count - 1))
        made.fold(7)
    for index, bound in enumerate(made.bounds):
        assert sum(made.counts[: index + 1]) == sum(count for value, count in values if value <= bound)
    assert made.count == sum(count for _, count in values)
    assert made.sum == pytest.approx(sum(value * count for value, count in values))


def some_readings() -> list[Reading]:
    seen = Distribution(instruments.VERIFY_TIME.bounds)
    for value in (0.0004, 0.02, 9.0):
        seen.observe(value)
    return [
        reading(instruments.GENERATION_TOKENS, 17),
        reading(instruments.ROUNDS, {("bonus", "wait", "draft"): 3, ("plain", "none", "plain"): 4}),
        reading(instruments.SESSIONS, 2),
        reading(instruments.VERIFY_TIME, seen),
        reading(instruments.REQUESTS_FAILED, {}),
    ]


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
    assert rounds == {("bonus", "wait", "draft"): 3, ("plain", "none", "plain"): 4}
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


def test_otlp_carries_the_same_values() -> None:
    message = encode_metrics(otlp_metrics(some_readings(), Resource.create({}), 1, 2))
    metrics = {metric.name: metric for metric in message.resource_metrics[0].scope_metrics[0].metrics}
    tokens = metrics["slipstream_generation_tokens"]
    assert tokens.sum.is_monotonic and tokens.sum.data_points[0].as_double + tokens.sum.data_points[0].as_int == 17
    assert len(metrics["slipstream_rounds"].sum.data_points) == 2
    (verify,) = metrics["slipstream_verify_seconds"].histogram.data_points
    assert verify.count == 3 and list(verify.explicit_bounds) == list(instruments.VERIFY_TIME.bounds)
    assert not verify.HasField("min") and not verify.HasField("max")
    assert sum(verify.bucket_counts) == 3 and (verify.start_time_unix_nano, verify.time_unix_nano) == (1, 2)


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
            deadline = time.monotonic() + 20
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


def test_the_page_says_what_the_instruments_say() -> None:
    shown = (DOCS / "reference" / "metrics.md").read_text()
    assert shown == page(), "run python tools/make_reference.py"
    for instrument in ALL.values():
        assert f"`{instrument.exposed_name}`" in shown


@pytest.mark.parametrize("instrument", ALL.values(), ids=lambda each: each.name)
def test_names_are_prometheus_own_and_bounds_ascend(instrument: Instrument) -> None:
    assert not instrument.name.endswith("_total") and instrument.text.endswith(".")
    assert (instrument.kind is Kind.HISTOGRAM) == bool(instrument.bounds)
    assert list(instrument.bounds) == sorted(set(instrument.bounds))


def test_logs_for_machines_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers.clear()
    try:
        configure_logging("verifier", "INFO", "json")
        logging.getLogger("a.b").warning("of %d\nlines", 2, extra={"session_id": "s"})
        (line,) = capsys.readouterr().err.splitlines()
    finally:
        root.handlers[:] = handlers
    said = json.loads(line)
    assert (said["level"], said["logger"], said["service"], said["session_id"]) == ("WARNING", "a.b", "verifier", "s")
    assert said["message"] == "of 2\nlines" and "timestamp" in said


def test_every_metric_that_is_written_down_is_read_by_somebody() -> None:
    """Looked for by name: a metric that nobody yields would be a line in the page and nothing
    else."""
    code = "\n".join(
        Path(path).read_text() for path in ("orchestrator/processes/metrics.py", "slipstream/hosting/metrics.py")
    )
    source = Path("slipstream/telemetry/instruments.py").read_text()
    for constant in [line.split(" = ")[0] for line in source.splitlines() if " = _" in line and line[0].isupper()]:
        assert f"instruments.{constant}" in code, constant
