"""Each turn is one trace over three processes, received here over OTLP/gRPC as a collector would."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, Result, Settings
from slipstream.telemetry import names
from tests.system.conftest import PAPER_PAIR


@dataclass
class Received:
    service: str
    span: Span

    def attribute(self, name: str) -> object:
        for pair in self.span.attributes:
            if pair.key == name:
                return getattr(pair.value, str(pair.value.WhichOneof("value")))
        raise KeyError(name)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
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
        return [received for received in self.received if received.span.name == name]


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    address = free_address()
    server.add_insecure_port(address)
    server.start()
    yield servicer, f"http://{address}"
    server.stop(0)


CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def turns(collector: tuple[Collector, str]) -> tuple[Collector, list[Result], str]:
    """Two turns of a chat, and a Generate called from within somebody's trace."""
    servicer, endpoint = collector
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, environment=environment)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        with client.chat(settings=Settings(max_token_count=30, draft_length=4, temperature=0.5, seed=11)) as chat:
            results = [chat.send(text).wait() for text in ("one", "two")]
        from slipstream.v1 import orchestrator_pb2 as pb

        request = pb.GenerateRequest(text="hello", settings={"max_token_count": 3})
        list(client.stub.Generate(request, metadata=[("traceparent", CALLER)]))
        deadline = time.monotonic() + 20
        while len(servicer.named(names.CHAT.format(model=PAPER_PAIR.target))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    return servicer, results, chat.session_id  # the services have drained: every span has been exported


def test_a_turn_is_one_trace_with_a_span_a_round_its_proposal_and_its_verification(
    turns: tuple[Collector, list[Result], str],
) -> None:
    collector, results, session_id = turns
    roots = collector.named(names.CHAT.format(model=PAPER_PAIR.target))[:2]
    for number, (root, result) in enumerate(zip(roots, results, strict=True), 1):
        trace = [r for r in collector.received if r.span.trace_id == root.span.trace_id]
        children: dict[bytes, list[Received]] = defaultdict(list)
        for received in trace:
            children[received.span.parent_span_id].append(received)
        assert root.service == "orchestrator"
        assert root.attribute(names.CONVERSATION_ID) == session_id
        assert root.attribute(names.TURN) == number
        assert root.attribute(names.USAGE_INPUT_TOKENS) == result.prompt_token_count
        assert root.attribute(names.USAGE_OUTPUT_TOKENS) == 30
        assert root.attribute(names.CACHED_TOKENS) == result.cached_token_count
        assert root.attribute(names.REQUEST_SEED) == 11
        rounds = children[root.span.span_id]
        assert [r.span.name for r in rounds] == [names.ROUND] * result.round_count
        assert sum(int(str(r.attribute(names.ACCEPTED_COUNT))) for r in rounds) == result.accepted_token_count
        drafts = 0
        for received in rounds:
            exchanges = {child.span.name: child for child in children[received.span.span_id]}
            drafts += names.PROPOSE in exchanges
            expected = {names.PROPOSE: ("draft", names.DRAFT_SERVICE_PROPOSE)} if names.PROPOSE in exchanges else {}
            expected[names.VERIFY] = ("verifier", names.VERIFIER_SERVICE_VERIFY)
            assert set(exchanges) == set(expected)
            for name, (service, server_name) in expected.items():
                (server,) = children[exchanges[name].span.span_id]
                assert (server.service, server.span.name) == (service, server_name)
                assert server.span.kind == Span.SPAN_KIND_SERVER
                assert float(str(server.attribute(names.FORWARD_MS))) >= 0
                assert float(str(server.attribute(names.PREFILL_MS))) >= 0
        assert drafts == result.draft_count
        assert len(trace) == 1 + result.round_count * 3 + result.draft_count * 2


def test_a_callers_trace_goes_on(turns: tuple[Collector, list[Result], str]) -> None:
    collector, _, _ = turns
    root = collector.named(names.CHAT.format(model=PAPER_PAIR.target))[2]
    assert root.span.trace_id.hex() == CALLER.split("-")[1]
    assert root.span.parent_span_id.hex() == CALLER.split("-")[2]
