"""Tracing set-up and the little that our spans need beyond OpenTelemetry's API.

Stream metadata travels once a stream, so every item carries its own traceparent. Without
OTEL_EXPORTER_OTLP_ENDPOINT nothing is recorded and a span costs about a microsecond.

Most spans are written once they have ended (`write_span`): of a turn's rounds only the end tells
which are worth one, and making it then costs 4 us where a live span costs 45.
"""

from __future__ import annotations

import asyncio
import os
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
"""Characters of a status."""

_EXPORT_DELAY, _EXPORT_BATCH, _EXPORT_QUEUE = "200", "64", "8192"
"""Milliseconds and spans, where the environment says nothing else: a process that is killed takes
along no more than that, and a batch holds up the event loop for three milliseconds. The library's
own are 5,000, 512 and 2,048."""

AttributeValue = str | bool | int | float | Sequence[str]

tracer = trace.get_tracer("slipstream", VERSION)
_propagator = TraceContextTextMapPropagator()


@contextmanager
def exporting_spans(service_name: str) -> Iterator[None]:
    """Inside, spans go out to where the environment says. TelemetrySettingsError if that cannot be
    followed."""
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
    """Where spans go that are written once they have ended."""

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
    """A span that has ended, with times in nanoseconds since the epoch. Nothing if tracing is not
    set up, or the context says that it is not recorded."""
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
    """A new span's context in the trace of ``parent``."""
    return SpanContext(parent.trace_id, span_id or _ids.generate_span_id(), False, parent.trace_flags)


def root_span() -> SpanContext:
    """The context of a span that begins a trace of its own, which is recorded."""
    return SpanContext(_ids.generate_trace_id(), _ids.generate_span_id(), False, TraceFlags(TraceFlags.SAMPLED))


def resource_of(service_name: str) -> Resource:
    """What a service's spans and metrics are of. Its name is what OTEL_SERVICE_NAME or
    OTEL_RESOURCE_ATTRIBUTES say, if they do, and its namespace what the latter say: the three
    services are one system."""
    said = OTELResourceDetector().detect().attributes
    own = {SERVICE_NAME: service_name, SERVICE_NAMESPACE: "slipstream"}
    return Resource.create({**{name: said.get(name, value) for name, value in own.items()}, SERVICE_VERSION: VERSION})


_QUOTED = re.compile(r"(?<!\w)(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")")
"""What ``repr`` makes of a text, which never holds a quotation mark of its own kind."""


class Ending(NamedTuple):
    """What something ended with that did not end well. Holds no error: that would hold the frames
    it came through."""

    kind: str
    """The reason as clients get it, or the error's class where it has none."""
    message: str
    is_cancelled: bool = False
    """By a task's cancellation, which is no failure, but said."""

    @property
    def status(self) -> Status:
        """For a span."""
        return Status() if self.is_cancelled else Status(StatusCode.ERROR, self.message[:_LONGEST_MESSAGE])

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """Likewise."""
        return {names.OUTCOME: "cancelled"} if self.is_cancelled else {names.ERROR_TYPE: self.kind}


def ending_of(error: BaseException) -> Ending:
    """By an error. What is wrong with a field may quote what a user wrote, so only the field is
    named; and what else a message quotes is left out: names that callers choose may be long, or be
    secrets."""
    if isinstance(error, asyncio.CancelledError):
        return Ending(Code.CANCELLED.name, "", is_cancelled=True)
    if not isinstance(error, SlipstreamError):
        return Ending(type(error).__qualname__, str(error))
    fields = ", ".join(violation.field for violation in error.violations)
    return Ending(error.reason, fields or _QUOTED.sub("…", str(error)))


def fail_with(span: Span, error: BaseException) -> None:
    """Show on a live span what it ended with."""
    ending = ending_of(error)
    span.set_attributes(ending.attributes)
    if not ending.is_cancelled:
        span.set_status(ending.status)


def trace_prefix_of(span: Span) -> str:
    """What the traceparents of all spans in its trace begin with: version and trace id; empty if it
    is not recorded."""
    return f"00-{span.get_span_context().trace_id:032x}-" if span.is_recording() else ""


def context_of(traceparent: str) -> Context:
    """A context whose current span is the remote one that ``traceparent`` names."""
    return _propagator.extract({"traceparent": traceparent})


def traceparent_of(context: Context) -> str:
    """A context's current span, as `context_of` takes it; empty if there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get("traceparent", "")


def span_of(traceparent: str) -> SpanContext:
    """The remote span that ``traceparent`` names; an invalid one if it names none."""
    return trace.get_current_span(context_of(traceparent)).get_span_context()


def context_of_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """The caller's trace context from a call's metadata."""
    return propagate.extract({key: value for key, value in metadata or () if isinstance(value, str)})


def server_span_below(traceparent: str, name: str) -> tuple[SpanContext, SpanContext] | None:
    """The contexts of a server's span below ``traceparent``, and of what is above; None if it is
    not to be recorded. The OTEL_TRACES_SAMPLER of this process has its say."""
    if not traceparent or _writer.provider is None:
        return None
    around = context_of(traceparent)
    parent = trace.get_current_span(around).get_span_context()
    if not parent.is_valid:
        return None
    decision = _writer.provider.sampler.should_sample(around, parent.trace_id, name, SpanKind.SERVER).decision
    return (span_below(parent), parent) if decision is Decision.RECORD_AND_SAMPLE else None
