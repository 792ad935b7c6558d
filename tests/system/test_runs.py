"""The runs of an orchestrator that is away: they stop within their grant, and their pages come
back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from orchestrator.rounds.terms import LEAD
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.wire.v1 import model_pb2
from tests.system.conftest import load_of, paper_tokens

PROMPT = [10, 20, 30, 40]
LENGTH = 4 * LEAD
RUN = Settings(max_token_count=LENGTH, draft_length=0)
GRACE = 2.0
PAIR = PairSettings(
    target="arithmetic:ends=0&forward_ms=5",
    draft="",
    target_flags=["--peer-grace-seconds", str(GRACE), "--default-lease-seconds", "600"],
)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalServices]:
    with LocalServices(PAIR) as local:
        yield local


def standing_still(address: str) -> model_pb2.Load:
    """The verifier's load once it has nothing to do and takes no more steps."""
    deadline = time.monotonic() + 60
    load = load_of(address)
    while True:
        time.sleep(0.5)
        before, load = load, load_of(address)
        if load.step_count == before.step_count and not load.unfinished_count:
            return load
        assert time.monotonic() < deadline, "the verifier goes on"


def test_the_run_of_a_stopped_orchestrator_pauses_and_goes_on_when_it_wakes(local: LocalServices) -> None:
    orchestrator = local.services["orchestrator"].process
    with Client(local.orchestrator_address) as client:
        reply = client.generate(PROMPT, RUN)
        pieces = iter(reply)
        next(pieces)
        orchestrator.send_signal(signal.SIGSTOP)
        try:
            before = load_of(local.verifier_address)
            after = standing_still(local.verifier_address)
        finally:
            orchestrator.send_signal(signal.SIGCONT)
        for _ in pieces:
            pass
    assert after.step_count - before.step_count <= LEAD
    assert after.sequence_count > 0
    assert reply.result.token_ids == paper_tokens(PROMPT, LENGTH)


def test_the_run_of_a_killed_orchestrator_stops_and_gives_its_pages_back(local: LocalServices) -> None:
    orchestrator = local.services["orchestrator"].process
    with Client(local.orchestrator_address) as client:
        next(iter(client.generate(PROMPT, RUN)))
        orchestrator.kill()
        orchestrator.wait()
    before = load_of(local.verifier_address)
    after = standing_still(local.verifier_address)
    assert after.step_count - before.step_count <= LEAD
    deadline = time.monotonic() + GRACE + 30
    while (load := load_of(local.verifier_address)).sequence_count or load.held_page_count:
        assert time.monotonic() < deadline, f"{load.sequence_count} handles are open"
        time.sleep(0.1)
    local.start_orchestrator().wait_until_healthy()
    with Client(local.orchestrator_address) as client:
        assert client.generate(PROMPT, RUN).wait().token_ids == paper_tokens(PROMPT, LENGTH)
