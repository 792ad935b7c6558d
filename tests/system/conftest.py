"""Real processes on real sockets. Starting three takes seconds, so tests share them where nothing is broken on purpose."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client
from slipstream.engine.arithmetic import ArithmeticSettings, next_token
from slipstream.v1 import model_pb2, model_pb2_grpc

PAPER = ArithmeticSettings(ends=0)
PAPER_PAIR = PairSettings(
    target="arithmetic:ends=0",
    draft="arithmetic:ends=0&agreement=0.8",
    target_flags=["--kv-memory-mib", "1"],
    draft_flags=["--kv-memory-mib", "1"],
)


def paper_tokens(prompt: list[int], count: int, settings: ArithmeticSettings = PAPER) -> list[int]:
    """What the paper model says after a prompt, worked out without a model."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(sum(tokens), len(tokens), settings))
        if tokens[-1] == 2:
            break
    return tokens[len(prompt) :]


def load_of(address: str) -> model_pb2.Load:
    """A model service's own account of its pages."""
    with grpc.insecure_channel(address) as channel:
        return model_pb2_grpc.ModelServiceStub(channel).GetLoad(model_pb2.GetLoadRequest()).load


def settled_load_of(address: str) -> model_pb2.Load:
    """The load once handles given back a moment ago have arrived: unchanged for a quarter of a second."""
    before = load_of(address)
    while True:
        time.sleep(0.25)
        after = load_of(address)
        if after == before:
            return after
        before = after


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
