"""The round stream over a real socket: coalescing, matching, errors in band, and a lost stream that loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from slipstream.errors import Code
from slipstream.rpc.channel import open_channel
from slipstream.rpc.item_stream import ItemStream, answer_items
from slipstream.rpc.status import PeerError
from slipstream.v1 import verifier_pb2, verifier_pb2_grpc


class Echo(verifier_pb2_grpc.VerifierServiceServicer):
    """Answers each item after ``tail[0]`` milliseconds with the item's own base_length; keeps the messages' sizes."""

    def __init__(self) -> None:
        self.message_sizes: list[int] = []
        self.draining = asyncio.Event()

    async def Verify(
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for response in answer_items(
            request_iterator,
            self._items,
            self._answer,
            lambda results: verifier_pb2.VerifyResponse(results=results),
            self.draining,
        ):
            yield response

    def _items(self, request: verifier_pb2.VerifyRequest) -> list[verifier_pb2.VerifyItem]:
        self.message_sizes.append(len(request.items))
        return list(request.items)

    async def _answer(self, item: verifier_pb2.VerifyItem, _: Any) -> verifier_pb2.VerifyResult:
        await asyncio.sleep(item.tail[0] / 1000)
        return verifier_pb2.VerifyResult(handle=item.handle, round=item.round, next_token=item.base_length)


class Rig:
    def __init__(self) -> None:
        self.echo = Echo()
        self.port = 0

    async def start(self) -> None:
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self.echo, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()


def item(handle: str, number: int = 1, *, wait_ms: int = 0, base_length: int = 0) -> verifier_pb2.VerifyItem:
    return verifier_pb2.VerifyItem(handle=handle, round=number, tail=[wait_ms], base_length=base_length)


@pytest.fixture
async def rig() -> AsyncIterator[tuple[Rig, ItemStream[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult]]]:
    rig = Rig()
    await rig.start()
    channel = open_channel(f"127.0.0.1:{rig.port}")
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    stream: ItemStream[verifier_pb2.VerifyItem, verifier_pb2.VerifyResult] = ItemStream(
        stub.Verify, lambda items: verifier_pb2.VerifyRequest(items=items), lambda response: response.results
    )
    yield rig, stream
    await stream.close()
    await channel.close()
    await rig.server.stop(0)


async def test_answers_find_their_askers_in_any_order(rig: Any) -> None:
    _, stream = rig
    asks = [stream.ask(item(f"h{i}", base_length=i, wait_ms=(20 - i) * 3)) for i in range(20)]
    assert [result.next_token for result in await asyncio.gather(*asks)] == list(range(20))


async def test_items_that_wait_together_travel_together(rig: Any) -> None:
    rig_, stream = rig
    await stream.ask(item("first"))
    await asyncio.gather(*(stream.ask(item(f"h{i}")) for i in range(50)))
    assert sum(rig_.echo.message_sizes) == 51
    assert len(rig_.echo.message_sizes) < 10


async def test_a_lost_stream_fails_what_waits_and_the_next_item_reconnects(rig: Any) -> None:
    rig_, stream = rig
    waiting = asyncio.create_task(stream.ask(item("h", wait_ms=60_000)))
    await stream.ask(item("other"))
    await rig_.server.stop(0)
    with pytest.raises(PeerError) as caught:
        await waiting
    assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "STREAM_LOST")
    await rig_.start()
    for _ in range(50):
        try:
            assert (await stream.ask(item("h", 2, base_length=5))).next_token == 5
            return
        except PeerError:
            await asyncio.sleep(0.1)
    pytest.fail("the stream did not come back")


async def test_an_asker_that_gives_up_leaves_the_others_alone(rig: Any) -> None:
    _, stream = rig
    slow = asyncio.create_task(stream.ask(item("slow", wait_ms=5_000)))
    other = asyncio.create_task(stream.ask(item("other", wait_ms=50, base_length=3)))
    await asyncio.sleep(0.01)
    slow.cancel()
    assert (await other).next_token == 3


async def test_an_item_may_have_several_results_and_the_last_one_says_so(rig: Any) -> None:
    rig_, stream = rig

    class Sink:
        def __init__(self) -> None:
            self.taken: list[int] = []
            self.over = asyncio.Event()

        def take(self, result: verifier_pb2.VerifyResult) -> bool:
            self.taken.append(result.next_token)
            if result.next_token == 3:
                self.over.set()
            return result.next_token == 3

        def lose(self, error: PeerError) -> None:
            self.over.set()

    async def answer(asked: verifier_pb2.VerifyItem, push: Any) -> verifier_pb2.VerifyResult:
        for number in range(3):
            push(verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=number))
            await asyncio.sleep(0.01)
        return verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=3)

    rig_.echo._answer = answer
    sink, lost = Sink(), Sink()
    stream.send(item("h"), sink)
    await sink.over.wait()
    assert sink.taken == [0, 1, 2, 3]
    assert not stream._waiting, "a sink that has its last result is forgotten"
    stream.send(item("lost"), lost)
    await asyncio.sleep(0.005)
    await rig_.server.stop(0)
    await asyncio.wait_for(lost.over.wait(), 5)
    assert lost.taken != [0, 1, 2, 3]


async def test_half_closing_answers_everything_first(rig: Any) -> None:
    rig_, _ = rig
    async with open_channel(f"127.0.0.1:{rig_.port}") as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
        await call.write(verifier_pb2.VerifyRequest(items=[item(f"h{i}", wait_ms=i * 10) for i in range(5)]))
        await call.done_writing()
        handles = [result.handle async for response in call for result in response.results]
    assert handles == [f"h{i}" for i in range(5)]


async def test_a_draining_server_answers_what_it_has_and_ends_the_stream(rig: Any) -> None:
    rig_, stream = rig
    waiting = asyncio.create_task(stream.ask(item("h", wait_ms=300, base_length=4)))
    await stream.ask(item("other"))
    rig_.echo.draining.set()
    stopping = asyncio.create_task(rig_.server.stop(60))
    assert (await waiting).next_token == 4
    async with asyncio.timeout(5):
        await stopping
