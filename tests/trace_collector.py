"""An OTLP/gRPC receiver that keeps the spans it gets, as a collector would."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from slipstream.cli.local import free_address


@dataclass
class Received:
    """A span and the service that it is of."""

    service: str
    span: Span

    def attribute(self, name: str) -> object:
        """KeyError if it has none of this name."""
        for pair in self.span.attributes:
            if pair.key == name:
                kind = str(pair.value.WhichOneof("value"))
                if kind == "array_value":
                    return [value.string_value for value in pair.value.array_value.values]
                return getattr(pair.value, kind)
        raise KeyError(name)

    def has(self, name: str) -> bool:
        """Whether it has such an attribute."""
        return any(pair.key == name for pair in self.span.attributes)

    @property
    def has_failed(self) -> bool:
        """Whether its status says so."""
        return self.span.status.code == Status.STATUS_CODE_ERROR


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[Received] = []

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            for scope in resource.scope_spans:
                self.received.extend(Received(service, span) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Received]:
        """All spans of a name."""
        return [received for received in self.received if received.span.name == name]

    def below(self, parent: Received) -> list[Received]:
        """A span's children."""
        return [received for received in self.received if received.span.parent_span_id == parent.span.span_id]


@contextmanager
def collecting(delay_ms: int | None = 200) -> Iterator[tuple[Collector, dict[str, str]]]:
    """A collector that listens, and the environment of those who shall export to it, ``delay_ms``
    after each span; None leaves that to them."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    address = free_address()
    server.add_insecure_port(address)
    server.start()
    try:
        delay = {} if delay_ms is None else {"OTEL_BSP_SCHEDULE_DELAY": str(delay_ms)}
        yield collector, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}", **delay}
    finally:
        server.stop(0)
