"""Each turn is one trace over three processes, received here over OTLP/gRPC as a collector would."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Result, Settings
from slipstream.telemetry import names
from slipstream.telemetry.tracing import resource_of
from slipstream.v1 import orchestrator_pb2 as pb
from tests.system.conftest import PAPER_PAIR
from tests.trace_collector import Collector, Received, collecting

CHAT = names.CHAT.format(model=PAPER_PAIR.target)
SLOW = f"{PAPER_PAIR.target}&forward_ms=5"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def turns() -> Iterator[tuple[Collector, list[Result], str]]:
    """Two turns of a chat, and a Generate called from within somebody's trace."""
    with collecting() as (collector, environment):
        pair = PairSettings(PAPER_PAIR.target, PAPER_PAIR.draft, environment=environment)
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            with client.chat(settings=Settings(max_token_count=30, draft_length=4, temperature=0.5, seed=11)) as chat:
                results = [chat.send(text).wait() for text in ("one", "two")]
            request = pb.GenerateRequest(text="hello", settings={"max_token_count": 3})
            list(client.stub.Generate(request, metadata=[("traceparent", CALLER)]))
            deadline = time.monotonic() + 20
            while len(collector.named(CHAT)) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield collector, results, chat.session_id  # the services have drained: every span has been exported


def test_a_turn_is_one_trace_with_a_span_a_round_its_proposal_and_its_verification(
    turns: tuple[Collector, list[Result], str],
) -> None:
    collector, results, session_id = turns
    roots = collector.named(CHAT)[:2]
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
        assert root.attribute(names.ACCEPTED_TOKEN_COUNT) == result.accepted_token_count
        assert root.attribute(names.DRAFT_TOKEN_COUNT) == result.draft_token_count
        assert root.attribute(names.TIME_TO_FIRST_TOKEN_MS) == pytest.approx(1e3 * result.time_to_first_token, abs=1e-3)
        assert root.attribute(names.RESPONSE_FINISH_REASONS) == ["max_tokens"]
        parts = (names.DRAFT_MS, names.VERIFY_MS, names.QUEUE_MS, names.NETWORK_MS, names.ORCHESTRATOR_MS)
        assert sum(float(str(root.attribute(part))) for part in parts) == pytest.approx(
            1e3 * result.total_time, rel=0.01
        )
        linked = [link.span_id for link in root.span.links]
        assert linked == ([roots[0].span.span_id] if number == 2 else [])
        rounds = children[root.span.span_id]
        assert [r.span.name for r in rounds] == [names.ROUND] * result.round_count
        assert sum(int(str(r.attribute(names.ACCEPTED_COUNT))) for r in rounds) == result.accepted_token_count
        drafts = 0
        for received in rounds:
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
        assert drafts == result.draft_count
        assert len(trace) == 1 + result.round_count * 3 + result.draft_count * 2


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
            orchestrator_flags=["--draft-deadline-seconds", "0.5", "--verifier-patience-seconds", "3"],
            environment=environment,
        )
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            short = Settings(max_token_count=30, draft_length=4)
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
            draft.send_signal(signal.SIGSTOP)
            fallen_back = client.generate("fallen back", short).wait()
            assert fallen_back.draft_failure_count
            draft.send_signal(signal.SIGCONT)
            local.services["verifier"].stop()
            with pytest.raises(PeerError):
                client.generate("lost", short).wait()
        yield collector, {"chat": chat.session_id, "fallen back": fallen_back.session_id}


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
    }

    def turn(kind: str) -> Received:
        (root,) = known[kind]
        return root

    return turn


def in_turn(client: Client) -> None:
    """A message refused because a turn runs, and one of a stream that waits for that turn's end, with a trace of its own."""
    session = client.create_session(settings=Settings(max_token_count=60)).session_id
    running = client.stub.SendMessage(pb.SendMessageRequest(session_id=session, content="x"))
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


def test_a_refused_message_is_a_span_with_its_reason(turn_of: Callable[[str], Received]) -> None:
    root = turn_of("refused")
    assert root.attribute(names.ERROR_TYPE) == "INVALID_FIELDS"
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
