"""Tracing set-up and the little that our spans need beyond OpenTelemetry's API.

Stream metadata travels once a stream, so every item carries its own traceparent. Without
OTEL_EXPORTER_OTLP_ENDPOINT nothing is recorded and a span costs about a microsecond.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from slipstream.errors import SlipstreamError
from slipstream.telemetry import names
from slipstream.version import VERSION

_LONGEST_MESSAGE = 1000
"""Characters of a status."""

AttributeValue = str | bool | int | float

tracer = trace.get_tracer("slipstream", VERSION)
_propagator = TraceContextTextMapPropagator()


def configure_tracing(service_name: str) -> TracerProvider | None:
    """Export spans over OTLP/gRPC if OTEL_EXPORTER_OTLP_ENDPOINT is set; call ``shutdown`` on the result at the end."""
    if not (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return None
    provider = TracerProvider(resource=resource_of(service_name))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def resource_of(service_name: str) -> Resource:
    """What a service's spans are of. Its name is what OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say, if they do."""
    said = OTELResourceDetector().detect().attributes
    return Resource.create({SERVICE_NAME: said.get(SERVICE_NAME, service_name), SERVICE_VERSION: VERSION})


def child_span(name: str, parent: Span, kind: SpanKind = SpanKind.INTERNAL) -> Span:
    """A span below ``parent``; where that is not recorded, this is not either, and costs nothing."""
    if not parent.is_recording():
        return INVALID_SPAN
    return tracer.start_span(name, trace.set_span_in_context(parent), kind=kind)


def fail(span: Span, kind: str, message: str) -> None:
    """What the span shows went wrong. ``kind`` is a reason as clients get it."""
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, message[:_LONGEST_MESSAGE]))


def fail_with(span: Span, error: BaseException) -> None:
    """The same by an error: its reason, or its class's name where it has none. A task's cancellation is no failure, but said.
    What is wrong with a field may quote what a user wrote, so only the field is named."""
    if isinstance(error, asyncio.CancelledError):
        span.set_attribute(names.OUTCOME, "cancelled")
        return
    if not isinstance(error, SlipstreamError):
        fail(span, type(error).__qualname__, str(error))
        return
    fields = ", ".join(violation.field for violation in error.violations)
    fail(span, error.reason, fields or str(error))


def traceparent_of(span: Span) -> str:
    """The span as a W3C traceparent; empty if it is not recorded."""
    if not span.is_recording():
        return ""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent", "")


def context_of(traceparent: str) -> Context:
    """A context whose current span is the remote one that ``traceparent`` names."""
    return _propagator.extract({"traceparent": traceparent})


def context_of_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """The caller's trace context from a call's metadata."""
    return propagate.extract({key: value for key, value in metadata or () if isinstance(value, str)})


def record_server_span(
    name: str, traceparent: str, start_ns: int, end_ns: int, attributes: Mapping[str, AttributeValue]
) -> None:
    """A finished server span below ``traceparent``, from times in nanoseconds since the epoch. Nothing if not traced."""
    if traceparent:
        span = tracer.start_span(
            name, context_of(traceparent), kind=SpanKind.SERVER, attributes=attributes, start_time=start_ns
        )
        span.end(end_ns)
