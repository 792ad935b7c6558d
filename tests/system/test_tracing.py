"""Each turn is one trace over three processes, received here over OTLP/gRPC as a collector
would."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, PeerError, Result, Settings
from slipstream.telemetry import names
from slipstream.telemetry.tracing import resource_of
from slipstream.v1 import orchestrator_pb2 as pb
from tests.system.conftest import PAPER_PAIR
from tests.system.turn_traces import check_root
from tests.trace_collector import Collector, Received, collecting

CHAT = names.CHAT.format(model=PAPER_PAIR.target)
SLOW = f"{PAPER_PAIR.target}&forward_ms=5"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def metrics_of(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus would read: samples by name, then by the values of their labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for sample in (sample for family in families for sample in family.samples):
            found[sample.name][tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
        return found


RATIO = Settings(max_token_count=30, draft_length=4, temperature=0.5, seed=11, ratio=True)
"""A turn by rounds, each of which asks the draft and the verifier."""


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[tuple[str, ...], float]]:
    """The orchestrator's metrics once the turns below have ended."""
    return {}


@pytest.fixture(scope="module")
def turns(
    counted: dict[str, dict[tuple[str, ...], float]],
) -> Iterator[tuple[Collector, list[Result], str]]:
    """Two turns of a chat, and a Generate called from within a caller's trace."""
    with collecting() as (collector, environment):
        metrics = free_address()
        pair = PairSettings(
            PAPER_PAIR.target,
            PAPER_PAIR.draft,
            orchestrator_flags=["--metrics-address", metrics],
            environment=environment,
        )
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            with client.chat(settings=RATIO) as chat:
                results = [chat.send(text).wait() for text in ("one", "two")]
            request = pb.GenerateRequest(text="hello", settings={"max_token_count": 3})
            list(client.stub.Generate(request, metadata=[("traceparent", CALLER)]))
            deadline = time.monotonic() + 60
            while len(collector.named(CHAT)) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            counted.update(metrics_of(metrics))
        yield collector, results, chat.session_id  # the services have drained: every span has been exported


@pytest.mark.essential
def test_a_turn_is_one_trace_with_a_span_a_round_its_proposal_and_its_verification(
    turns: tuple[Collector, list[Result], str],
) -> None:
    collector, results, session_id = turns
    roots = collector.named(CHAT)[:2]
    for number, result in enumerate(results, 1):
        rounds, children = check_root(collector, roots, number, result, session_id)
        drafts = 0
        base = result.prompt_token_count
        for received in sorted(rounds, key=lambda each: each.span.start_time_unix_nano):
            assert received.attribute(names.BASE_LENGTH) == base
            base += int(str(received.attribute(names.COMMITTED_COUNT)))
            assert received.attribute(names.SESSION_COUNT) == 1
            assert float(str(received.attribute(names.VERIFIER_IDLE_MS))) > 0
            drafted, accepted = (int(str(received.attribute(n))) for n in (names.DRAFT_LENGTH, names.ACCEPTED_COUNT))
            kind = "recovered" if accepted < drafted else "bonus" if drafted else "plain"
            assert received.attribute(names.NEXT_TOKEN_KIND) == kind
            assert float(str(received.attribute(names.WAITED_MS))) >= 0
            exchanges = {child.span.name: child for child in children[received.span.span_id]}
            drafts += names.PROPOSE in exchanges
            expected = {names.PROPOSE: ("draft", names.DRAFT_SERVICE_PROPOSE)} if names.PROPOSE in exchanges else {}
            expected[names.VERIFY] = ("verifier", names.VERIFIER_SERVICE_VERIFY)
            assert set(exchanges) == set(expected)
            for name, (service, server_name) in expected.items():
                (server,) = children[exchanges[name].span.span_id]
                assert exchanges[name].attribute(names.SERVER_ADDRESS) == "127.0.0.1"
                assert float(str(exchanges[name].attribute(names.NETWORK_MS))) > 0
                assert (server.service, server.span.name) == (service, server_name)
                assert server.span.kind == Span.SPAN_KIND_SERVER
                assert float(str(server.attribute(names.FORWARD_MS))) >= 0
                assert float(str(server.attribute(names.PREFILL_MS))) >= 0
                assert exchanges[name].span.start_time_unix_nano <= server.span.start_time_unix_nano
                steps = {step.span.span_id: step for step in collector.named(names.STEP)}
                assert server.span.links, "an item links to the steps it was in"
                for link in server.span.links:
                    step = steps[link.span_id]
                    assert step.service == service and step.span.trace_id == link.trace_id != server.span.trace_id
                    assert exchanges[name].span.span_id in {back.span_id for back in step.span.links}
                    assert int(str(step.attribute(names.STEP_ITEM_COUNT))) == 1
        assert base == result.prompt_token_count + 30
        assert drafts == result.draft_count
        assert sum(map(len, children.values())) == 1 + result.round_count * 3 + result.draft_count * 2


def test_counters_agree_with_the_spans_and_with_the_statistics_to_the_token(
    turns: tuple[Collector, list[Result], str], counted: dict[str, dict[tuple[str, ...], float]]
) -> None:
    collector, results, _ = turns
    roots = collector.named(CHAT)
    rounds = [r for r in collector.named(names.ROUND) if r.span.parent_span_id in {root.span.span_id for root in roots}]

    def spans(name: str, of: list[Received]) -> int:
        return sum(int(str(each.attribute(name))) for each in of)

    def counter(name: str) -> float:
        return sum(counted[f"slipstream_{name}_total"].values())

    assert spans(names.COMMITTED_COUNT, rounds) == spans(names.USAGE_OUTPUT_TOKENS, roots) == 63
    assert counter("generation_tokens") == 63 == sum(result.generated_token_count for result in results) + 3
    assert counter("rounds") == len(rounds) == spans(names.ROUND_COUNT, roots)
    for attribute, name in (
        (names.DRAFT_TOKEN_COUNT, "spec_decode_num_draft_tokens"),
        (names.ACCEPTED_TOKEN_COUNT, "spec_decode_num_accepted_tokens"),
    ):
        assert counter(name) == counter(f"{name}_per_pos") == spans(attribute, roots) > 0
    assert spans(names.DRAFT_LENGTH, rounds) == spans(names.DRAFT_TOKEN_COUNT, roots)
    assert spans(names.ACCEPTED_COUNT, rounds) == spans(names.ACCEPTED_TOKEN_COUNT, roots)
    assert counter("spec_decode_num_drafts") == sum(int(str(r.attribute(names.DRAFT_LENGTH))) > 0 for r in rounds)
    assert counted["slipstream_request_success_total"] == {("max_tokens",): 3}
    assert counter("prompt_tokens") == spans(names.USAGE_INPUT_TOKENS, roots)
    assert counter("prefix_cache_hits") == spans(names.CACHED_TOKENS, roots)
    outcomes: dict[str, float] = defaultdict(float)
    for (outcome, _), count in counted["slipstream_rounds_total"].items():
        outcomes[outcome] += count
    assert outcomes == {
        kind: sum(each.attribute(names.NEXT_TOKEN_KIND) == kind for each in rounds) for kind in outcomes
    }
    seconds = counted["slipstream_verify_seconds_sum"][()]
    assert seconds * 1e3 == pytest.approx(sum(float(str(root.attribute(names.VERIFY_MS))) for root in roots))


def test_a_callers_trace_goes_on(turns: tuple[Collector, list[Result], str]) -> None:
    collector, _, _ = turns
    root = collector.named(CHAT)[2]
    assert root.span.trace_id.hex() == CALLER.split("-")[1]
    assert root.span.parent_span_id.hex() == CALLER.split("-")[2]


# --- what goes wrong


@pytest.fixture(scope="module")
def troubles() -> Iterator[tuple[Collector, dict[str, str]]]:
    """One turn of each kind that does not go well, and in which trace each is."""
    with collecting() as (collector, environment):
        pair = PairSettings(
            SLOW,
            PAPER_PAIR.draft,
            orchestrator_flags=["--draft-deadline-seconds", "2", "--verifier-patience-seconds", "3"],
            environment=environment,
        )
        record: dict[str, str] = {}
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            short = Settings(max_token_count=30, draft_length=4, temperature=0.5, ratio=True)
            with client.chat(settings=Settings(max_token_count=3000, draft_length=4)) as chat:
                reply = chat.send("cancelled")
                deltas = reply.deltas()
                next(deltas)
                reply.cancel()
                for _ in deltas:
                    pass
                with pytest.raises(PeerError):
                    chat.send("").wait()
            in_turn(client)
            draft = local.services["draft"].process
            deadline = time.monotonic() + 60
            while not client.generate("is it used?", short).wait().draft_count:
                assert time.monotonic() < deadline, "the draft is left alone"
            draft.send_signal(signal.SIGSTOP)
            fallen_back = client.generate("fallen back", short).wait()
            assert fallen_back.draft_failure_count
            draft.send_signal(signal.SIGCONT)
            record["reattached"] = reattached(client)
            local.services["verifier"].stop()
            with pytest.raises(PeerError):
                client.generate("lost", short).wait()
        yield collector, {"chat": chat.session_id, "fallen back": fallen_back.session_id, **record}


@pytest.fixture(scope="module")
def turn_of(troubles: tuple[Collector, dict[str, str]]) -> Callable[[str], Received]:
    """The root span of each kind."""
    collector, sessions = troubles
    roots = [root for root in collector.named(names.CHAT.format(model=SLOW)) if root.has(names.CONVERSATION_ID)]
    of_chat = [root for root in roots if root.attribute(names.CONVERSATION_ID) == sessions["chat"]]
    known = {
        "cancelled": [root for root in of_chat if not root.has_failed],
        "refused": [root for root in of_chat if root.has_failed],
        "fallen back": [root for root in roots if root.attribute(names.CONVERSATION_ID) == sessions["fallen back"]],
        "lost": [root for root in roots if root.has_failed and root.has(names.ROUND_COUNT)],
        "reattached": [root for root in roots if root.attribute(names.CONVERSATION_ID) == sessions["reattached"]],
    }

    def turn(kind: str) -> Received:
        (root,) = known[kind]
        return root

    return turn


def reattached(client: Client) -> str:
    """A turn whose stream is lost, and which is watched on from where it was; the session it is
    of."""
    session = client.create_session(settings=Settings(max_token_count=40, draft_length=4)).session_id
    call = client.stub.SendMessage(pb.SendMessageRequest(session_id=session, content="x"))
    seen = 0
    while not seen:
        seen += len(next(call).event.delta.token_ids)
    call.cancel()
    rest = list(client.stub.WatchTurn(pb.WatchTurnRequest(session_id=session, turn=1, after_token_count=seen)))
    assert seen + sum(len(response.event.delta.token_ids) for response in rest) == 40
    return str(session)


def in_turn(client: Client) -> None:
    """A message refused because a turn runs, and one of a stream that waits for that turn's end,
    with a trace of its own."""
    session = client.create_session(settings=Settings(max_token_count=60)).session_id
    long = Settings(max_token_count=300, draft_length=0).message()
    running = client.stub.SendMessage(pb.SendMessageRequest(session_id=session, content="x", settings=long))
    next(running)
    with pytest.raises(grpc.RpcError):
        list(client.stub.SendMessage(pb.SendMessageRequest(session_id=session, content="busy")))
    commands = [
        pb.ChatRequest(start=pb.StartChat(session_id=session)),
        pb.ChatRequest(message=pb.UserMessage(content="waits", traceparent=CALLER)),
    ]
    stream = client.stub.Chat(iter(commands), metadata=[("traceparent", CALLER.replace("0af7", "ffff"))])
    assert any(response.turn.HasField("finished") for response in stream)
    list(running)


def test_a_message_that_waits_is_not_refused_and_goes_on_with_its_own_trace(
    troubles: tuple[Collector, dict[str, str]],
) -> None:
    roots = troubles[0].named(names.CHAT.format(model=SLOW))
    (busy,) = [root for root in roots if root.has_failed and root.attribute(names.ERROR_TYPE) == "SESSION_BUSY"]
    session = busy.attribute(names.CONVERSATION_ID)
    of_session = [root for root in roots if root.has(names.CONVERSATION_ID)]
    of_session = [root for root in of_session if root.attribute(names.CONVERSATION_ID) == session]
    assert sorted(root.has_failed for root in of_session) == [False, False, True]
    waited = [root for root in of_session if root.span.parent_span_id]
    assert [root.span.trace_id.hex() for root in waited] == [CALLER.split("-")[1]]


def test_a_cancelled_turn_says_so_has_not_failed_and_leaves_no_child_without_an_end(
    troubles: tuple[Collector, dict[str, str]], turn_of: Callable[[str], Received]
) -> None:
    root, collector = turn_of("cancelled"), troubles[0]
    assert root.attribute(names.RESPONSE_FINISH_REASONS) == ["cancelled"]
    *_, last = rounds = sorted(collector.below(root), key=lambda each: each.span.start_time_unix_nano)
    assert [each.has(names.OUTCOME) for each in rounds] == [False] * (len(rounds) - 1) + [True]
    assert last.attribute(names.OUTCOME) == "cancelled" and not last.has_failed
    for request in collector.below(last):
        assert request.span.end_time_unix_nano <= last.span.end_time_unix_nano


def test_a_turn_that_was_watched_on_after_its_stream_was_lost_is_one_trace_from_begin_to_end(
    troubles: tuple[Collector, dict[str, str]], turn_of: Callable[[str], Received]
) -> None:
    root, collector = turn_of("reattached"), troubles[0]
    assert not root.has_failed and root.attribute(names.USAGE_OUTPUT_TOKENS) == 40
    rounds = collector.below(root)
    assert len(rounds) == root.attribute(names.ROUND_COUNT)
    assert sum(int(str(each.attribute(names.COMMITTED_COUNT))) for each in rounds) == 40


def test_every_span_has_ended_within_what_is_above_it_or_was_left(troubles: tuple[Collector, dict[str, str]]) -> None:
    known = {each.span.span_id: each for each in troubles[0].received}
    for each in known.values():
        assert each.span.end_time_unix_nano >= each.span.start_time_unix_nano > 0
        above = known.get(each.span.parent_span_id)
        if above is not None and above.service == each.service:
            assert each.span.start_time_unix_nano >= above.span.start_time_unix_nano - 1_000_000, each.span.name


def test_a_service_that_is_killed_takes_none_of_the_spans_along_that_are_half_a_second_old() -> None:
    with collecting(delay_ms=None) as (collector, environment):
        pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, environment=environment)
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            result = client.generate("x", RATIO).wait()
            time.sleep(4)  # less than the 5 s that OpenTelemetry waits by itself
            local.services["draft"].process.kill()
            deadline = time.monotonic() + 60
            while len(collector.named(names.DRAFT_SERVICE_PROPOSE)) < result.draft_count:
                assert time.monotonic() < deadline, "it takes spans along"
                time.sleep(0.1)


def test_a_collector_that_is_away_keeps_no_service_from_ending() -> None:
    nowhere = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{free_address()}",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, environment=nowhere)
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        client.generate("x", Settings(max_token_count=20, draft_length=4)).wait()
        time.sleep(0.5)
        for service in local.services.values():
            service.process.send_signal(signal.SIGTERM)
        for service in local.services.values():
            assert service.process.wait(25) == 0, "spans and metrics have two seconds each"
            assert "could not be exported within 2 s" in service.log_tail(200)


def test_metrics_are_there_while_a_model_is_being_loaded() -> None:
    address, metrics = free_address(), free_address()
    command = [sys.executable, "-m", "draft_service", "--model", "arithmetic:ends=0", "--address", address]
    with subprocess.Popen([*command, "--metrics-address", metrics], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 60
            before: dict[str, dict[tuple[str, ...], float]] = {}
            while not before:
                assert time.monotonic() < deadline
                with suppress(OSError):
                    before = metrics_of(metrics)
            assert "process_start_time_seconds" in before and "slipstream_info" not in before
            while "slipstream_info" not in metrics_of(metrics):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            process.kill()


def test_a_refused_message_is_a_span_with_its_reason(turn_of: Callable[[str], Received]) -> None:
    root = turn_of("refused")
    assert root.attribute(names.ERROR_TYPE) == "INVALID_FIELDS"
    assert root.attribute("gen_ai.provider.name") == "slipstream"
    assert not root.has("gen_ai.response.model") and not root.has("gen_ai.response.time_to_first_chunk")
    assert not root.has(names.ROUND_COUNT)


def test_a_draft_that_is_late_has_failed_and_the_turn_has_not(
    troubles: tuple[Collector, dict[str, str]], turn_of: Callable[[str], Received]
) -> None:
    root, collector = turn_of("fallen back"), troubles[0]
    assert not root.has_failed
    assert root.attribute(names.RESPONSE_FINISH_REASONS) == ["max_tokens"]
    assert int(str(root.attribute(names.DRAFT_FAILURE_COUNT))) > 0
    proposals = [request for each in collector.below(root) for request in collector.below(each)]
    late = [each for each in proposals if each.span.name == names.PROPOSE and each.has_failed]
    assert [each.attribute(names.ERROR_TYPE) for each in late] == ["DRAFT_LATE"]


def test_a_turn_whose_verifier_is_lost_has_failed_and_says_why_on_every_level(
    troubles: tuple[Collector, dict[str, str]], turn_of: Callable[[str], Received]
) -> None:
    root, collector = turn_of("lost"), troubles[0]
    (round_,) = collector.below(root)
    (verify,) = [each for each in collector.below(round_) if each.span.name == names.VERIFY]
    for each in (root, round_, verify):
        assert each.has_failed and each.attribute(names.ERROR_TYPE) == "VERIFIER_LOST"
    assert root.attribute(names.RESPONSE_FINISH_REASONS) == ["error"]
    assert verify.span.events, "each attempt that failed is an event"


def test_a_service_has_the_name_that_its_environment_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource_of("verifier").attributes["service.name"] == "verifier"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "big-node")
    assert resource_of("verifier").attributes["service.name"] == "big-node"
    monkeypatch.delenv("OTEL_SERVICE_NAME")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=small-node,zone=a")
    named = resource_of("verifier").attributes
    assert (named["service.name"], named["zone"]) == ("small-node", "a")
