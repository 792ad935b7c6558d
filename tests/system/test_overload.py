"""More turns than there is time for, in real processes: each is done, and says the same, or is told
when to come back."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import pytest

from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import AsyncClient, Settings
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc
from tests.system.conftest import paper_tokens
from tests.system.test_tracing import metrics_of
from tests.system.test_turns import Commands, reason_of

SLOW = PairSettings(
    target="arithmetic:ends=0&forward_ms=10&row_us=1000",
    draft="",
    orchestrator_flags=["--max-running-turns", "4", "--queue-seconds", "0.3"],
)
PROMPT = [5, 6, 7]
ANSWER = Settings(temperature=0, max_token_count=20)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with LocalServices(SLOW) as local:
        yield local.orchestrator_address


async def test_admitted_turns_end_and_refused_ones_are_told_when_to_retry(address: str) -> None:
    said: list[list[int]] = []
    refused: list[PeerError] = []

    async def one(client: AsyncClient, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            async with await client.generate(PROMPT, ANSWER) as reply:
                said.append([token async for delta in reply.deltas() for token in delta.token_ids])
        except PeerError as error:
            refused.append(error)

    async with AsyncClient(address) as client:
        # Sixty at once are too many for any machine; the others come while some of those run.
        await asyncio.gather(*(one(client, 0.02 * max(0, index - 60)) for index in range(150)))
    assert len(said) + len(refused) == 150
    assert len(said) >= 8
    assert len(refused) >= 30
    assert {(error.code, error.reason) for error in refused} == {(Code.RESOURCE_EXHAUSTED, "OVERLOADED")}
    assert all(0 < (error.retry_after or 0) <= 11 for error in refused)
    assert all(tokens == paper_tokens(PROMPT, 20) for tokens in said)


@pytest.mark.essential
async def test_a_client_that_comes_back_when_it_is_told_gets_through(address: str) -> None:
    async def one(client: AsyncClient) -> int:
        for _ in range(50):
            try:
                async with await client.generate(PROMPT, ANSWER) as reply:
                    return len([token async for delta in reply.deltas() for token in delta.token_ids])
            except PeerError as error:
                await asyncio.sleep(error.retry_after or 60)
        raise AssertionError("never let in")

    async with AsyncClient(address) as client:
        assert await asyncio.gather(*(one(client) for _ in range(24))) == [20] * 24


def test_a_queued_message_can_be_cancelled_and_does_not_delay_a_drain() -> None:
    patient = replace(SLOW, orchestrator_flags=["--max-running-turns", "1", "--queue-seconds", "60"])
    # Without hints: a text of numbers repeats itself, and would end before the next call is heard.
    settings = {"max_token_count": 400, "sampling": {"temperature": 0}, "speculation": {"off": {}}}
    with LocalServices(patient) as local, grpc.insecure_channel(local.orchestrator_address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        longer = {**settings, "max_token_count": 5000}  # it runs until it is cancelled
        running = stub.Generate(pb.GenerateRequest(tokens=pb.TokenList(token_ids=PROMPT), settings=longer))
        assert next(running).event.HasField("started")
        chat = Commands(stub)
        chat.send("start", start={})
        chat.until("opened")
        chat.send("one", message={"content": "one", "settings": settings})
        chat.send("two", message={"content": "two", "settings": settings})
        wait_until(lambda: stub.GetStatus(pb.GetStatusRequest()).processes[0].waiting_turn_count == 1)
        chat.send("cancel one", cancel={"request_id": "one"})
        failed = chat.until("failed").failed
        assert (failed.request_id, reason_of(failed.error)[0]) == ("one", "MESSAGE_CANCELLED")
        wait_until(lambda: stub.GetStatus(pb.GetStatusRequest()).processes[0].waiting_turn_count == 1)
        status = stub.GetStatus(pb.GetStatusRequest()).processes[0]
        assert (status.turn_place_count, status.running_turn_count) == (1, 1)
        running.cancel()
        assert chat.until("started").turn.started.request_id == "two"
        late = stub.Generate(pb.GenerateRequest(tokens=pb.TokenList(token_ids=PROMPT), settings=settings))
        wait_until(lambda: stub.GetStatus(pb.GetStatusRequest()).processes[0].waiting_turn_count == 1)
        local.services["orchestrator"].process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            next(late)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert chat.until("finished").turn.finished.usage.generated_token_count == 400, "what ran may end"


async def test_a_verifier_with_more_runs_than_rows_shows_that_they_wait_though_all_have_begun() -> None:
    """Until runs came, an item waited for its first forward or not at all."""
    metrics, length = free_address(), 600  # the first ones still run when a busy machine has begun the last
    crowded = PairSettings(
        target="arithmetic:ends=0&forward_ms=5",
        draft="",
        target_flags=["--max-step-tokens", "8", "--metrics-address", metrics],
        orchestrator_flags=["--max-running-turns", "24"],
    )
    answer = Settings(temperature=0, max_token_count=length, draft_length=0)
    by_reason = "slipstream_num_requests_waiting_by_reason"
    with LocalServices(crowded) as local:
        async with AsyncClient(local.orchestrator_address) as client:

            async def one() -> list[int]:
                async with await client.generate(PROMPT, answer) as reply:
                    return [token async for delta in reply.deltas() for token in delta.token_ids]

            turns = asyncio.gather(*(one() for _ in range(24)))
            while (seen := await asyncio.to_thread(metrics_of, metrics))[by_reason] != {
                ("place",): 16,
                ("pages",): 0,
                ("step",): 0,  # all have had their first forward
            }:
                assert not turns.done(), seen[by_reason]
                await asyncio.sleep(0.02)
            assert seen["slipstream_num_requests_waiting"] == {(): 16}
            assert seen["slipstream_num_requests_running"] == {(): 8}
            status = await client.status()
            (verifier,) = status.processes[0].peers
            assert verifier.load.waiting_count > 0 and verifier.load.sat_out_count > 0
            assert await turns == [paper_tokens(PROMPT, length)] * 24
        after = await asyncio.to_thread(metrics_of, metrics)
    sat_out, waited = (
        [read[name][("place",)] for read in (seen, after)]
        for name in ("slipstream_sat_out_steps_total", "slipstream_item_waiting_seconds_total")
    )
    assert sat_out[0] < sat_out[1] and sat_out[1] > 12 * length, "two of three steps, of 24 runs"
    assert 0 < waited[0] < waited[1]
    assert after["slipstream_item_queue_seconds_count"] == {(): 24}, "an item has one such time"
    assert after["slipstream_oldest_wait_seconds"] == {(): 0}


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
