"""A service says how much of an item's time went to prompts, its own and others'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import grpc

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.rpc.wire import seconds
from slipstream.wire.v1 import model_pb2, verifier_pb2, verifier_pb2_grpc
from tests.system.conftest import first_verify, new_handle

A_PROMPT = 300


def item(handle: str, number: int, base_length: int, tail: list[int]) -> verifier_pb2.VerifyItem:
    return first_verify(handle=handle, round=number, base_length=base_length, tail=tail)


@contextmanager
def lone_verifier(model: str) -> Iterator[str]:
    """Serve one that no other process asks, and yield its address: an orchestrator's warm-up may
    still be computed when it is healthy."""
    service = Service("verifier", "verifier_service", free_address(), ["--model", model], {})
    try:
        service.wait_until_healthy(60)
        yield service.address
    finally:
        service.stop()


def test_a_round_beside_a_prompt_says_what_the_prompt_took() -> None:
    requests: SimpleQueue[verifier_pb2.VerifyRequest | None] = SimpleQueue()
    with (
        lone_verifier("arithmetic:ends=0&forward_ms=5&row_us=1000") as address,
        grpc.insecure_channel(address) as channel,
    ):
        answers: Iterator[verifier_pb2.VerifyResponse] = verifier_pb2_grpc.VerifierServiceStub(channel).Verify(
            iter(requests.get, None)
        )

        def ask(*items: verifier_pb2.VerifyItem) -> None:
            requests.put(verifier_pb2.VerifyRequest(items=items))

        def next_timings(count: int) -> dict[str, model_pb2.ItemTiming]:
            timings: dict[str, model_pb2.ItemTiming] = {}
            while len(timings) < count:
                for result in next(answers).results:
                    assert not result.HasField("error"), result.error
                    timings[result.handle] = result.timing
            return timings

        chat, prompt = new_handle(), new_handle()
        ask(item(chat, 1, 0, [5, 6, 7]))
        alone = next_timings(1)[chat]
        ask(item(prompt, 1, 0, [9] * A_PROMPT), item(chat, 2, 3, [8]))
        both = next_timings(2)
        ask(item(chat, 3, 4, [8]))
        after = next_timings(1)[chat]
        requests.put(None)
    assert seconds(alone.prefill) == seconds(after.prefill) == 0
    for timing in both.values():
        assert 0 < seconds(timing.prefill) <= seconds(timing.total)
    assert seconds(both[prompt].prefill) > 0.25, "a millisecond a token"
