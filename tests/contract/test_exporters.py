"""Where telemetry goes, by OpenTelemetry's variables: each of their values is followed or refused
in one line."""

from __future__ import annotations

import os

import pytest
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from slipstream.telemetry.exporters import (
    Signal,
    TelemetrySettingsError,
    exporter_names,
    metric_exporters,
    milliseconds,
    protocol,
    span_exporters,
)
from slipstream.telemetry.tracing import resource_of

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
TRACES = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}
METRICS = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def say(environment: pytest.MonkeyPatch, said: dict[str, str]) -> None:
    for name, value in said.items():
        environment.setenv(name, value)


@pytest.mark.parametrize(
    ("signal", "said", "names"),
    [
        ("TRACES", {}, []),
        ("TRACES", ENDPOINT, ["otlp"]),
        ("TRACES", TRACES, ["otlp"]),
        ("TRACES", METRICS, []),
        ("TRACES", ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, []),
        ("TRACES", ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, ["otlp"]),
        ("TRACES", ENDPOINT | {"OTEL_TRACES_EXPORTER": ""}, ["otlp"]),
        ("TRACES", ENDPOINT | {"OTEL_SDK_DISABLED": "TRUE"}, []),
        ("TRACES", ENDPOINT | {"OTEL_SDK_DISABLED": "false"}, ["otlp"]),
        ("TRACES", {"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp"]),
        ("TRACES", {"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
        ("METRICS", ENDPOINT, []),
        ("METRICS", METRICS, ["otlp"]),
        ("METRICS", METRICS | {"OTEL_METRICS_EXPORTER": "none"}, []),
        ("METRICS", ENDPOINT | {"OTEL_METRICS_EXPORTER": "otlp"}, ["otlp"]),
        ("METRICS", METRICS | {"OTEL_SDK_DISABLED": "true"}, []),
        ("METRICS", {"OTEL_METRICS_EXPORTER": "console"}, ["console"]),
    ],
)
def test_exporters_are_those_that_are_asked_for(
    environment: pytest.MonkeyPatch, signal: Signal, said: dict[str, str], names: list[str]
) -> None:
    say(environment, said)
    assert exporter_names(signal) == names
    made: list[SpanExporter | MetricExporter] = [*(span_exporters() if signal == "TRACES" else metric_exporters())]
    assert len(made) == len(names)
    for exporter in made:
        exporter.shutdown()


@pytest.mark.parametrize("value", ["zipkin", "jaeger", "otlp,zipkin", "none,otlp", "prometheus"])
def test_an_exporter_that_there_is_not_is_refused(environment: pytest.MonkeyPatch, value: str) -> None:
    for signal, exporters in (("TRACES", span_exporters), ("METRICS", metric_exporters)):
        environment.setenv(f"OTEL_{signal}_EXPORTER", value)
        with pytest.raises(
            TelemetrySettingsError, match=rf"^OTEL_{signal}_EXPORTER={value} is not supported: set it to otlp"
        ):
            exporters()


@pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
def test_a_signals_own_protocol_comes_before_that_of_all(environment: pytest.MonkeyPatch, signal: Signal) -> None:
    assert protocol(signal) == "grpc"
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert protocol(signal) == "http/protobuf"
    environment.setenv(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "grpc")
    assert protocol(signal) == "grpc"
    environment.setenv(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "http/json")
    with pytest.raises(
        TelemetrySettingsError, match=r"_PROTOCOL=http/json is not supported: set it to grpc or http/protobuf"
    ):
        protocol(signal)


@pytest.mark.parametrize(("said", "kind"), [("grpc", "proto.grpc"), ("http/protobuf", "proto.http")])
def test_an_exporter_speaks_the_protocol_that_is_asked_for(
    environment: pytest.MonkeyPatch, said: str, kind: str
) -> None:
    say(environment, TRACES | METRICS | {"OTEL_EXPORTER_OTLP_PROTOCOL": said})
    made: list[SpanExporter | MetricExporter] = [*span_exporters(), *metric_exporters()]
    for exporter in made:
        assert kind in type(exporter).__module__
        exporter.shutdown()


def test_what_the_library_does_not_take_is_one_line(environment: pytest.MonkeyPatch) -> None:
    say(environment, TRACES | {"OTEL_EXPORTER_OTLP_COMPRESSION": "lzma"})
    with pytest.raises(TelemetrySettingsError, match=r"^the OTEL_EXPORTER_OTLP_\* variables are not usable: "):
        span_exporters()


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_an_interval_that_is_none_is_refused(environment: pytest.MonkeyPatch, value: str) -> None:
    assert milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000) == 60_000
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", value)
    with pytest.raises(TelemetrySettingsError, match=f"OTEL_METRIC_EXPORT_INTERVAL={value} is not a positive number"):
        milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)


def test_a_resource_has_a_namespace(environment: pytest.MonkeyPatch) -> None:
    assert resource_of("draft").attributes["service.namespace"] == "slipstream"
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop,zone=a")
    named = resource_of("draft").attributes
    assert (named["service.namespace"], named["service.name"], named["zone"]) == ("shop", "draft", "a")
