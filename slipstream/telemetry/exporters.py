"""Exporters of traces and metrics, by OpenTelemetry's environment variables.

Without an endpoint or an exporter's name nothing is exported. A value that is not supported is
refused with one line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, TypeVar

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

Signal = Literal["TRACES", "METRICS"]

ExporterT = TypeVar("ExporterT")

_PROTOCOLS = ("grpc", "http/protobuf")
_ENDPOINTS = {
    "TRACES": ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    # A collector of traces, such as Jaeger, often accepts nothing else.
    "METRICS": ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",),
}


class TelemetrySettingsError(SlipstreamError):
    """An environment variable of OpenTelemetry's has a value that is not supported."""

    reason = Reason.TELEMETRY_SETTINGS


def exporter_names(signal: Signal) -> list[str]:
    """Return the exporters that the environment names: ``otlp``, ``console``.
    TelemetrySettingsError for others."""
    if _said("OTEL_SDK_DISABLED").lower() == "true":
        return []
    variable = f"OTEL_{signal}_EXPORTER"
    names = [name.strip() for name in _said(variable).split(",") if name.strip()]
    if not names:
        return ["otlp"] if any(_said(endpoint) for endpoint in _ENDPOINTS[signal]) else []
    if names == ["none"]:
        return []
    for name in names:
        if name not in ("otlp", "console"):
            further = "; Prometheus finds metrics at --metrics-address" if name == "prometheus" else ""
            raise TelemetrySettingsError(
                f"{variable}={_said(variable)} is not supported: set it to otlp, to console, to both, or to none{further}"
            )
    return list(dict.fromkeys(names))


def protocol(signal: Signal) -> str:
    """Return the protocol of OTLP: ``grpc`` by default, or ``http/protobuf``.
    TelemetrySettingsError for others."""
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if said := _said(variable):
            if said not in _PROTOCOLS:
                raise TelemetrySettingsError(f"{variable}={said} is not supported: set it to {' or '.join(_PROTOCOLS)}")
            return said
    return "grpc"


def span_exporters() -> list[SpanExporter]:
    """Return the exporters of spans. TelemetrySettingsError."""
    return [_made(ConsoleSpanExporter if name == "console" else _otlp_spans) for name in exporter_names("TRACES")]


def metric_exporters() -> list[MetricExporter]:
    """Return the exporters of metrics. TelemetrySettingsError."""
    return [_made(ConsoleMetricExporter if name == "console" else _otlp_metrics) for name in exporter_names("METRICS")]


def milliseconds(variable: str, default: float) -> float:
    """Return a variable's value in milliseconds. TelemetrySettingsError if it is not positive."""
    said = _said(variable)
    try:
        value = float(said) if said else default
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise TelemetrySettingsError(f"{variable}={said} is not a positive number of milliseconds")
    return value


def _otlp_spans() -> SpanExporter:  # an exporter is imported only where it exports
    if protocol("TRACES") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

        return ByGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _otlp_metrics() -> MetricExporter:
    if protocol("METRICS") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as ByGrpc

        return ByGrpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def _made(make: Callable[[], ExporterT]) -> ExporterT:
    try:
        return make()
    except SlipstreamError:
        raise
    except Exception as error:  # from its other variables: headers, compression, certificates
        raise TelemetrySettingsError(f"the OTEL_EXPORTER_OTLP_* variables are not usable: {error}") from error


def _said(variable: str) -> str:
    return os.environ.get(variable, "").strip()
