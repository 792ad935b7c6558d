"""What a stream of items makes of answers that it did not ask for, of bytes that are no message,
and of silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from slipstream.agreed import MAX_ANSWER_BYTES
from slipstream.rpc.channel import SERVER_OPTIONS
from slipstream.rpc.connector import PLAINTEXT
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.status import PeerError
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc

Script = Callable[[verifier_pb2.VerifyItem], list[bytes]]


def answer(*results: verifier_pb2.VerifyResult) -> bytes:
    return verifier_pb2.VerifyResponse(results=results).SerializeToString()


def result(handle: str, number: int) -> verifier_pb2.VerifyResult:
    return verifier_pb2.VerifyResult(handle=handle, round=number)


def right(item: verifier_pb2.VerifyItem) -> list[bytes]:
    return [answer(result(item.handle, item.round))]


class Rig(grpc.GenericRpcHandler):
    """A service that answers as the test says, and a stream to it."""

    script: Script = staticmethod(right)

    async def start(self) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers((self,))
        self.channel = PLAINTEXT.open_peer(f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}")
        await self.server.start()
        self.faults: list[str] = []
        self.lost = asyncio.Event()
        self.stream: ItemStream[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult] = ItemStream(
            verifier_pb2_grpc.VerifierServiceStub(self.channel).Verify,
            lambda items: verifier_pb2.VerifyRequest(items=items),
            lambda response: response.results,
            self.lost.set,
            on_fault=lambda field, requirement: self.faults.append(field),
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_stream_rpc_method_handler(self._converse, verifier_pb2.VerifyRequest.FromString)

    async def _converse(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            for item in request.items:
                for message in self.script(item):
                    yield message

    async def ask(self, number: int, handle: str = "h") -> verifier_pb2.VerifyResult:
        return await self.stream.ask(verifier_pb2.VerifyItem(handle=handle, round=number))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.start()
    yield rig
    await rig.stream.close()
    await rig.channel.close()
    await rig.server.stop(0)


FAULTS: dict[str, tuple[Script, str]] = {
    "another handle": (lambda item: [answer(result("other", 1))], "results"),
    "a round to come": (lambda item: [answer(result(item.handle, item.round + 1))], "results"),
    "no message": (lambda item: [b"\xff" * 10], "message"),
    "too large": (lambda item: [answer(result("x" * MAX_ANSWER_BYTES, 1))], "message"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_no_answer_ends_the_stream_and_the_next_item_opens_another(
    rig: Rig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.script, field = FAULTS[name]
    with pytest.raises(PeerError) as caught:
        await rig.ask(1)
    assert caught.value.reason == "STREAM_LOST"
    assert rig.faults == [field]
    assert "Traceback" not in caplog.text
    rig.script = right
    assert (await rig.ask(2)).round == 2


async def test_a_result_may_come_twice_and_not_for_ever(rig: Rig) -> None:
    rig.script = lambda item: right(item) * 2
    for number in range(1, 300):
        await rig.ask(number)
    await rig.ask(300)
    assert not rig.faults
    rig.script = lambda item: right(item) * 200
    await rig.ask(301)
    await rig.lost.wait()
    assert rig.faults == ["results"]


async def test_the_late_result_of_an_item_that_was_given_up_is_no_fault(rig: Rig) -> None:
    held: list[verifier_pb2.VerifyItem] = []
    all_held = asyncio.Event()

    def late(item: verifier_pb2.VerifyItem) -> list[bytes]:
        held.append(item)
        if len(held) == 19:
            all_held.set()
        return []

    rig.script = late
    given_up = [asyncio.create_task(rig.ask(number, f"h{number}")) for number in range(1, 20)]
    await all_held.wait()
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    rig.script = lambda item: [answer(*(result(each.handle, each.round) for each in held)), *right(item)]
    assert (await rig.ask(21)).round == 21
    assert not rig.faults and not rig.lost.is_set()


async def test_of_a_handle_whose_items_stay_unanswered_only_the_latest_are_kept(rig: Rig) -> None:
    class Forgotten:
        def take(self, _: verifier_pb2.VerifyResult) -> bool:
            return True

        def fail(self, error: PeerError) -> None:
            raise AssertionError(error)

    rig.script = lambda item: right(item) if item.handle == "other" else []
    for number in range(1, 1000):
        rig.stream.send(verifier_pb2.VerifyItem(handle="h", round=number), Forgotten())
    assert (await rig.ask(1, "other")).round == 1
    assert [*rig.stream._waiting["h"]] == [*range(936, 1000)]
    rig.stream._waiting.clear()
