"""Metrics: cheap to add to, read from any thread, shown to Prometheus and OTLP alike, and all of
them written down."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource

from slipstream.telemetry import instruments
from slipstream.telemetry.exposition import otlp_metrics
from slipstream.telemetry.instruments import Instrument, Kind
from slipstream.telemetry.logs import LogFormat, configure_logging
from slipstream.telemetry.metrics import Distribution
from tests.readings import some_readings

ALL = {
    each.name: each
    for each in (*instruments.OF_THE_ORCHESTRATOR, *instruments.OF_A_MODEL_SERVICE, *instruments.OF_THE_GATEWAY)
}


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


@pytest.mark.parametrize("instrument", ALL.values(), ids=lambda each: each.name)
def test_names_are_prometheus_own_and_bounds_ascend(instrument: Instrument) -> None:
    assert not instrument.name.endswith("_total") and instrument.text.endswith(".")
    assert (instrument.kind is Kind.HISTOGRAM) == bool(instrument.bounds)
    assert list(instrument.bounds) == sorted(set(instrument.bounds))


def logged(capsys: pytest.CaptureFixture[str], log_format: LogFormat, rank: int | None = None) -> str:
    """The line of a warning of two lines, by a handler made for it."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers.clear()
    try:
        configure_logging("verifier", "INFO", log_format, rank)
        logging.getLogger("a.b").warning("of %d\nlines", 2, extra={"session_id": "s"})
        return capsys.readouterr().err
    finally:
        root.handlers[:] = handlers


def test_log_lines_carry_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(logged(capsys, "json", 0))["rank"] == 0
    assert " verifier rank 1 WARNING of 2" in logged(capsys, "text", 1)
    assert " verifier WARNING of 2" in logged(capsys, "text")


def test_logs_for_machines_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = logged(capsys, "json").splitlines()
    said = json.loads(line)
    assert "rank" not in said
    assert (said["level"], said["logger"], said["service"], said["session_id"]) == ("WARNING", "a.b", "verifier", "s")
    assert said["message"] == "of 2\nlines" and "timestamp" in said


def test_every_metric_that_is_declared_is_read() -> None:
    """Looked for by name: a metric that no code yields would be a line in the page and nothing
    else."""
    sources = [
        *Path("orchestrator/processes").glob("*metrics.py"),
        "slipstream/hosting/metrics.py",
        "gateway/metrics.py",
    ]
    code = "\n".join(Path(path).read_text() for path in sources)
    source = Path("slipstream/telemetry/instruments.py").read_text()
    for constant in [line.split(" = ")[0] for line in source.splitlines() if " = _" in line and line[0].isupper()]:
        assert f"instruments.{constant}" in code, constant
