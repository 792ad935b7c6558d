"""The traces of turns that the target continues by itself, received here as a collector would."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Result, Settings
from slipstream.telemetry import names
from tests.system.conftest import PAPER_PAIR
from tests.system.turn_traces import check_root
from tests.trace_collector import Collector, Received, collecting

CHAT = names.CHAT.format(model=PAPER_PAIR.target)
SLOW = PairSettings(f"{PAPER_PAIR.target}&forward_ms=5", PAPER_PAIR.draft)
SERVERS = {
    names.PROPOSE: ("draft", names.DRAFT_SERVICE_DRAFT),
    names.VERIFY: ("verifier", names.VERIFIER_SERVICE_RUN),
}
"""The services that have spans below those of the orchestrator's, and their names."""


@pytest.fixture(scope="module")
def turns() -> Iterator[tuple[Collector, list[Result], str]]:
    """Two turns of a chat."""
    settings = Settings(max_token_count=30, draft_length=4, temperature=0.5, seed=11)
    with collecting() as (collector, environment):
        pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, environment=environment)
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            with client.chat(settings=settings) as chat:
                results = [chat.send(text).wait() for text in ("one", "two")]
            deadline = time.monotonic() + 60
            while len(collector.named(CHAT)) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield collector, results, chat.session_id  # the services have drained: every span has been exported


@pytest.mark.essential
def test_a_turn_is_one_trace_with_a_span_a_round_its_proposal_and_its_verification(
    turns: tuple[Collector, list[Result], str],
) -> None:
    collector, results, session_id = turns
    roots = collector.named(CHAT)[:2]
    for number, result in enumerate(results, 1):
        rounds, children = check_root(collector, roots, number, result, session_id)
        asked: dict[str, list[Received]] = {name: [] for name in SERVERS}
        base = result.prompt_token_count
        for received in sorted(rounds, key=lambda each: each.span.start_time_unix_nano):
            assert received.attribute(names.BASE_LENGTH) == base
            base += int(str(received.attribute(names.COMMITTED_COUNT)))
            assert received.attribute(names.SESSION_COUNT) == 1
            assert float(str(received.attribute(names.VERIFIER_IDLE_MS))) >= 0
            assert float(str(received.attribute(names.LEAST_MARGIN))) >= 0
            drafted, accepted = (int(str(received.attribute(n))) for n in (names.DRAFT_LENGTH, names.ACCEPTED_COUNT))
            kind = "recovered" if accepted < drafted else "bonus" if drafted else "plain"
            assert received.attribute(names.NEXT_TOKEN_KIND) == kind
            assert float(str(received.attribute(names.WAITED_MS))) >= 0
            exchanges = children[received.span.span_id]
            assert [exchange.span.name for exchange in exchanges].count(names.VERIFY) == 1
            for exchange in exchanges:
                asked[exchange.span.name].append(exchange)
                assert exchange.attribute(names.SERVER_ADDRESS) == "127.0.0.1"
                assert float(str(exchange.attribute(names.NETWORK_MS))) >= 0
        for name, (service, server_name) in SERVERS.items():
            ((above, server),) = [(each, below) for each in asked[name] for below in children[each.span.span_id]]
            assert (server.service, server.span.name) == (service, server_name), "a run is one item"
            assert server.span.kind == Span.SPAN_KIND_SERVER
            assert float(str(server.attribute(names.FORWARD_MS))) >= 0
            assert float(str(server.attribute(names.PREFILL_MS))) >= 0
            steps = {step.span.span_id: step for step in collector.named(names.STEP)}
            assert server.span.links, "an item links to the steps it was in"
            for link in server.span.links:
                step = steps[link.span_id]
                assert step.service == service and step.span.trace_id == link.trace_id != server.span.trace_id
                assert above.span.span_id in {back.span_id for back in step.span.links}
                assert int(str(step.attribute(names.STEP_ITEM_COUNT))) == 1
        assert base == result.prompt_token_count + 30
        assert sum(map(len, children.values())) == 1 + 2 * result.round_count + len(asked[names.PROPOSE]) + len(SERVERS)


def test_a_draft_that_hangs_has_failed_and_the_turn_has_not() -> None:
    with collecting() as (collector, environment):
        pair = PairSettings(SLOW.target, SLOW.draft, environment=environment)
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            deadline = time.monotonic() + 60
            while not client.generate("is it used?", Settings(max_token_count=30, draft_length=4)).wait().draft_count:
                assert time.monotonic() < deadline, "the draft is left alone"
            local.services["draft"].process.send_signal(signal.SIGSTOP)
            result = client.generate("left alone", Settings(max_token_count=1000, draft_length=4)).wait()
            local.services["draft"].process.send_signal(signal.SIGCONT)
            assert result.draft_failure_count
    roots = collector.named(names.CHAT.format(model=SLOW.target))
    (root,) = [each for each in roots if each.attribute(names.CONVERSATION_ID) == result.session_id]
    assert not root.has_failed and int(str(root.attribute(names.DRAFT_FAILURE_COUNT))) == result.draft_failure_count
    proposals = [request for each in collector.below(root) for request in collector.below(each)]
    late = [each for each in proposals if each.span.name == names.PROPOSE and each.has_failed]
    assert "DRAFT_LATE" in [each.attribute(names.ERROR_TYPE) for each in late]
