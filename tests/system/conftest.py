"""Real processes on real sockets. Starting three takes seconds, so tests share them where nothing
is broken on purpose."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.engine.arithmetic import ArithmeticSettings, next_token
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.sampling.rule import SamplingRule
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2, model_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tests.gateway_process import GatewayProcess, gateway_process

GREEDY = SamplingRule()
PAPER = ArithmeticSettings(ends=0)
PAPER_PAIR = PairSettings(
    target="arithmetic:ends=0",
    draft="arithmetic:ends=0&agreement=0.8",
    target_flags=["--kv-memory-mib", "1"],
    draft_flags=["--kv-memory-mib", "1"],
)

LASTING = Settings(max_token_count=8000, draft_length=0)
"""A turn of the paper pair that goes on until something ends it: thousands of rounds, seconds on
any machine. Left to choose, the pair soon sees that its text repeats, and is done with 5,000 tokens
in 0.15 s: before another client is heard."""


def paper_tokens(prompt: list[int], count: int, settings: ArithmeticSettings = PAPER) -> list[int]:
    """What the paper model says after a prompt, worked out without a model."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(sum(tokens), len(tokens), settings))
        if tokens[-1] == 2:
            break
    return tokens[len(prompt) :]


def new_handle() -> str:
    """Return a name that no other test uses."""
    return secrets.token_hex(8)


def stated(rule: SamplingRule = GREEDY) -> dict[str, Any]:
    """The fields of an item that states a rule, token ids out of any vocabulary included."""
    message = rule_message(rule, 2**31)
    return {"rule": message, "rule_hash": rule_hash(message)}


def first_verify(**fields: Any) -> verifier_pb2.VerifyItem:
    """An item that opens its handle and states its rule."""
    return verifier_pb2.VerifyItem(**{"open": model_pb2.OpenSequence(), **stated(), **fields})


def first_propose(**fields: Any) -> draft_pb2.ProposeItem:
    """An item that opens its handle and states its rule."""
    return draft_pb2.ProposeItem(**{"open": model_pb2.OpenSequence(), **stated(), **fields})


def verify_one(channel: grpc.Channel, item: verifier_pb2.VerifyItem) -> verifier_pb2.VerifyResult:
    """An item's result over a stream of its own."""
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    return next(iter(stub.Verify(iter([verifier_pb2.VerifyRequest(items=[item])])))).results[0]


def propose_one(channel: grpc.Channel, item: draft_pb2.ProposeItem) -> draft_pb2.ProposeResult:
    """An item's first result over a stream of its own."""
    stub = draft_pb2_grpc.DraftServiceStub(channel)
    return next(iter(stub.Propose(iter([draft_pb2.ProposeRequest(items=[item])])))).results[0]


def wait_for_health(channel: grpc.Channel, serving: bool = True, timeout: float = 120) -> None:
    """Ask a process how it is until it says so: that its port answers says nothing of its model
    yet."""
    health = health_pb2_grpc.HealthStub(channel)
    kind = health_pb2.HealthCheckResponse
    wanted = kind.SERVING if serving else kind.NOT_SERVING
    request = health_pb2.HealthCheckRequest()
    deadline = time.monotonic() + timeout
    while health.Check(request, timeout=timeout, wait_for_ready=True).status != wanted:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, f"not {kind.ServingStatus.Name(wanted)} after {timeout:g} s"
        time.sleep(0.05)


def load_of(address: str) -> model_pb2.Load:
    """A model service's own account of its pages."""
    with grpc.insecure_channel(address) as channel:
        return model_pb2_grpc.ModelServiceStub(channel).GetLoad(model_pb2.GetLoadRequest()).load


def settled_load_of(address: str) -> model_pb2.Load:
    """The load once handles given back a moment ago have arrived: nothing is in work, and four
    looks see the same."""
    looks: list[model_pb2.Load] = []
    while True:
        looks.append(load_of(address))
        now, is_idle = looks[-1], not looks[-1].running_count + looks[-1].waiting_count
        if is_idle and looks[-4:] == [now] * 4:
            return now
        time.sleep(0.25)


@pytest.fixture(scope="session")
def paper() -> Iterator[LocalServices]:
    with LocalServices(PAPER_PAIR) as local:
        yield local


@pytest.fixture
def client(paper: LocalServices) -> Iterator[Client]:
    with Client(paper.orchestrator_address) as connected:
        yield connected


@pytest.fixture(scope="session", params=["bfloat16", "float32"])
def embedded(request: pytest.FixtureRequest) -> Iterator[LocalServices]:
    with LocalServices(PairSettings(dtype=request.param)) as local:
        yield local


@pytest.fixture(scope="module")
def grpc_client(services: LocalServices) -> Iterator[Client]:
    """A client of the services that a module starts."""
    with Client(services.orchestrator_address) as connected:
        yield connected


@pytest.fixture(scope="module")
def gateway(services: LocalServices) -> Iterator[GatewayProcess]:
    """A gateway in front of the services that a module starts."""
    with gateway_process(services.orchestrator_address) as running:
        yield running


@pytest.fixture(scope="module")
def api(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the gateway."""
    with openai.OpenAI(base_url=f"http://{gateway.address}/v1", api_key="unused", max_retries=0) as connected:
        yield connected
