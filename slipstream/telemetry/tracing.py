"""Tracing: set-up, and helpers that OpenTelemetry's API lacks.

Stream metadata travels once for each stream, so every item carries its own traceparent. Without
OTEL_EXPORTER_OTLP_ENDPOINT nothing is recorded, and a span costs about a microsecond.

Most spans are written after they have ended (`write_span`). Only the end of a turn tells which of
its rounds deserve a span. Writing it then costs 4 us; a live span costs 45 us.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import (
    SERVICE_NAME,
    SERVICE_NAMESPACE,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from slipstream.errors import Code, SlipstreamError
from slipstream.telemetry import names
from slipstream.telemetry.exporters import span_exporters
from slipstream.telemetry.last_export import export_last
from slipstream.version import VERSION

_LONGEST_MESSAGE = 1000
"""Most characters of a span's status message."""

_EXPORT_DELAY, _EXPORT_BATCH, _EXPORT_QUEUE = "200", "64", "8192"
"""Defaults of the exporter: milliseconds between batches, spans in a batch, spans in the queue.

A killed process loses at most one batch, and a batch holds up the event loop for three
milliseconds. The library's own defaults are 5,000, 512 and 2,048."""

AttributeValue = str | bool | int | float | Sequence[str]

tracer = trace.get_tracer("slipstream", VERSION)
_propagator = TraceContextTextMapPropagator()


@contextmanager
def exporting_spans(service_name: str) -> Iterator[None]:
    """Context manager that exports spans as the environment variables say.
    TelemetrySettingsError."""
    exporters = span_exporters()
    if not exporters:
        yield
        return
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", _EXPORT_DELAY)
    os.environ.setdefault("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _EXPORT_BATCH)
    os.environ.setdefault("OTEL_BSP_MAX_QUEUE_SIZE", _EXPORT_QUEUE)
    provider = TracerProvider(resource=resource_of(service_name), shutdown_on_exit=False)
    processor = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    for exporter in exporters:
        processor.add_span_processor(BatchSpanProcessor(exporter))
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    _writer.start(provider, processor)
    try:
        yield
    finally:
        export_last("spans", provider.shutdown)


class _Writer:
    """Sink of spans that are written after they have ended."""

    def __init__(self) -> None:
        self.provider: TracerProvider | None = None
        self._processor: SpanProcessor | None = None
        self._scope = InstrumentationScope("slipstream", VERSION)

    def start(self, provider: TracerProvider, processor: SpanProcessor) -> None:
        self.provider, self._processor = provider, processor

    def write(self, **fields: Any) -> None:
        if self.provider is not None and self._processor is not None:
            fields |= {"resource": self.provider.resource, "instrumentation_scope": self._scope}
            self._processor.on_end(ReadableSpan(**fields))


_writer = _Writer()
_ids = RandomIdGenerator()


def write_span(
    name: str,
    context: SpanContext,
    parent: SpanContext | None,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, AttributeValue],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    status: Status | None = None,
    links: Sequence[Link] = (),
    events: Sequence[tuple[int, str]] = (),
) -> None:
    """Export a span that has ended, with times in nanoseconds since the epoch.

    Nothing is exported if tracing is not set up, or if ``context`` is not sampled.
    """
    if context.trace_flags.sampled:
        _writer.write(
            name=name,
            context=context,
            parent=parent,
            start_time=start_ns,
            end_time=max(start_ns, end_ns),
            attributes=attributes,
            kind=kind,
            status=status or Status(),
            links=links,
            events=[Event(text, timestamp=moment) for moment, text in events],
        )


def span_below(parent: SpanContext, span_id: int = 0) -> SpanContext:
    """Return the context of a new span in the trace of ``parent``."""
    return SpanContext(parent.trace_id, span_id or _ids.generate_span_id(), False, parent.trace_flags)


def root_span() -> SpanContext:
    """Return the context of a sampled span that begins a new trace."""
    return SpanContext(_ids.generate_trace_id(), _ids.generate_span_id(), False, TraceFlags(TraceFlags.SAMPLED))


def resource_of(service_name: str) -> Resource:
    """Return the resource of a service's spans and metrics.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the service's name and its namespace.
    """
    said = OTELResourceDetector().detect().attributes
    own = {SERVICE_NAME: service_name, SERVICE_NAMESPACE: "slipstream"}
    return Resource.create({**{name: said.get(name, value) for name, value in own.items()}, SERVICE_VERSION: VERSION})


_QUOTED = re.compile(r"(?<!\w)(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")")
"""A quoted text, as ``repr`` writes it."""


class Ending(NamedTuple):
    """The end of a failed or cancelled operation. It holds no exception, which would keep frames
    alive."""

    kind: str
    """Reason that clients get, or the error's class if it has none."""
    message: str
    is_cancelled: bool = False
    """True if the task was cancelled. A cancellation is shown, but it is not a failure."""

    @property
    def status(self) -> Status:
        """Return the status of the span."""
        return Status() if self.is_cancelled else Status(StatusCode.ERROR, self.message[:_LONGEST_MESSAGE])

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes that the span gets."""
        return {names.OUTCOME: "cancelled"} if self.is_cancelled else {names.ERROR_TYPE: self.kind}


def ending_of(error: BaseException) -> Ending:
    """Return how an error ended an operation, without text that a caller wrote.

    An invalid field is only named, and quoted texts are left out: they may be long or secret.
    """
    if isinstance(error, asyncio.CancelledError):
        return Ending(Code.CANCELLED.name, "", is_cancelled=True)
    if not isinstance(error, SlipstreamError):
        return Ending(type(error).__qualname__, str(error))
    fields = ", ".join(violation.field for violation in error.violations)
    return Ending(error.reason, fields or _QUOTED.sub("…", str(error)))


def fail_with(span: Span, error: BaseException) -> None:
    """Record on a live span the error that ended it."""
    ending = ending_of(error)
    span.set_attributes(ending.attributes)
    if not ending.is_cancelled:
        span.set_status(ending.status)


def trace_prefix_of(span: Span) -> str:
    """Return the beginning of all traceparents in a span's trace: version and trace id.

    Empty if the span is not recorded.
    """
    return f"00-{span.get_span_context().trace_id:032x}-" if span.is_recording() else ""


def new_span_of(traceparent: str) -> tuple[int, str]:
    """Return the id of a new span in a traceparent's trace, and the traceparent of what is below
    that span; 0 and an empty one if nothing is traced."""
    if not traceparent:
        return 0, ""
    version, trace_id, _, flags = traceparent.split("-")
    span_id = random.getrandbits(64) or 1
    return span_id, f"{version}-{trace_id}-{span_id:016x}-{flags}"


def context_of(traceparent: str) -> Context:
    """Return a context whose current span is the remote span of ``traceparent``."""
    return _propagator.extract({"traceparent": traceparent})


def traceparent_of(context: Context) -> str:
    """Return the traceparent of a context's current span; empty if there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get("traceparent", "")


def span_of(traceparent: str) -> SpanContext:
    """Return the remote span of ``traceparent``; an invalid span if there is none."""
    return trace.get_current_span(context_of(traceparent)).get_span_context()


def context_of_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """Return the caller's trace context from a call's metadata."""
    return propagate.extract({key: value for key, value in metadata or () if isinstance(value, str)})


def server_span_below(traceparent: str, name: str) -> tuple[SpanContext, SpanContext] | None:
    """Return the contexts of a new server span below ``traceparent`` and of its parent.

    None if the span is not sampled. The OTEL_TRACES_SAMPLER of this process decides too.
    """
    if not traceparent or _writer.provider is None:
        return None
    around = context_of(traceparent)
    parent = trace.get_current_span(around).get_span_context()
    if not parent.is_valid:
        return None
    decision = _writer.provider.sampler.should_sample(around, parent.trace_id, name, SpanKind.SERVER).decision
    return (span_below(parent), parent) if decision is Decision.RECORD_AND_SAMPLE else None
