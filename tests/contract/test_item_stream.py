"""The round stream over a real socket: coalescing, matching, errors in band, and a lost stream that
loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from slipstream.cli.local import free_address
from slipstream.errors import Code
from slipstream.rpc.channel import MAX_MESSAGE_BYTES, SERVER_OPTIONS, open_channel
from slipstream.rpc.item_answers import Answer, answer_items
from slipstream.rpc.item_stream import ItemStream
from slipstream.rpc.status import PeerError, error_of, status_of
from slipstream.wire.v1 import verifier_pb2, verifier_pb2_grpc
from tests.lock_step_verifier import LockStepVerifier


class Echo(LockStepVerifier):
    """Answers each item after ``tail[0]`` milliseconds with the item's own base_length; keeps the
    messages' sizes."""

    def __init__(self) -> None:
        self.message_sizes: list[int] = []
        self.byte_counts: list[int] = []
        self.answer_sizes: list[int] = []
        self.draining = asyncio.Event()

    async def Verify(
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        async for response in answer_items(
            request_iterator,
            self._items,
            self._begin,
            lambda item, error: verifier_pb2.VerifyResult(handle=item.handle, round=item.round, error=status_of(error)),
            lambda results: verifier_pb2.VerifyResponse(results=results),
            self.draining,
        ):
            self.answer_sizes.append(response.ByteSize())
            yield response

    def _items(self, request: verifier_pb2.VerifyRequest) -> list[verifier_pb2.VerifyItem]:
        self.message_sizes.append(len(request.items))
        self.byte_counts.append(request.ByteSize())
        return list(request.items)

    async def _begin(self, item: verifier_pb2.VerifyItem, answer: Answer[verifier_pb2.VerifyResult]) -> None:
        answer.finish(await self._answer(item, answer.push))

    async def _answer(self, item: verifier_pb2.VerifyItem, _: Any) -> verifier_pb2.VerifyResult:
        await asyncio.sleep(item.tail[0] / 1000)
        return verifier_pb2.VerifyResult(handle=item.handle, round=item.round, next_token=item.base_length)


class Rig:
    def __init__(self) -> None:
        self.echo = Echo()
        self.port = int(free_address().rpartition(":")[2])  # it is started again there

    async def start(self) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
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


class Sink:
    """Keeps what it gets; the result with next_token 3 is its last."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.lost: PeerError | None = None
        self.over = asyncio.Event()

    def receive(self, result: verifier_pb2.VerifyResult) -> bool:
        self.taken.append(result.next_token)
        if result.next_token == 3:
            self.over.set()
        return bool(result.next_token == 3)

    def fail(self, error: PeerError) -> None:
        self.lost = error
        self.over.set()


async def test_an_item_may_have_several_results_and_the_last_one_says_so(rig: Any) -> None:
    rig_, stream = rig

    async def answer(asked: verifier_pb2.VerifyItem, push: Any) -> verifier_pb2.VerifyResult:
        for number in range(3):
            push(verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=number))
            if asked.handle == "lost":
                await asyncio.Event().wait()  # what follows never comes
            await asyncio.sleep(0.01)
        return verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=3)

    rig_.echo._answer = answer
    sink, lost = Sink(), Sink()
    stream.send(item("h"), sink)
    await sink.over.wait()
    assert sink.taken == [0, 1, 2, 3]
    assert not stream._waiting, "a sink that has its last result is forgotten"
    stream.send(item("lost"), lost)
    async with asyncio.timeout(60):
        while lost.taken != [0]:  # noqa: ASYNC110 - a sink tells of its end alone
            await asyncio.sleep(0.005)
        await rig_.server.stop(0)
        await lost.over.wait()
    assert lost.taken == [0] and lost.lost is not None


async def test_a_failure_of_the_writer_fails_what_waits_and_the_next_item_gets_a_new_stream(rig: Any) -> None:
    _, stream = rig
    pack, failures = stream._pack, [RuntimeError("cannot pack")]

    def fail_once(items: list[verifier_pb2.VerifyItem]) -> Any:
        if failures:
            raise failures.pop()
        return pack(items)

    stream._pack = fail_once
    async with asyncio.timeout(60):
        with pytest.raises(PeerError, match="cannot pack") as caught:
            await stream.ask(item("h"))
        assert caught.value.reason == "STREAM_LOST"
        assert (await stream.ask(item("h", 2, base_length=5))).next_token == 5


async def test_a_failure_of_the_reader_fails_what_waits_and_the_next_item_gets_a_new_stream(rig: Any) -> None:
    _, stream = rig
    unpack, failures = stream._unpack, [RuntimeError("cannot unpack")]

    def fail_once(response: Any) -> Any:
        if failures:
            raise failures.pop()
        return unpack(response)

    stream._unpack = fail_once
    async with asyncio.timeout(60):
        with pytest.raises(PeerError, match="cannot unpack") as caught:
            await stream.ask(item("h"))
        assert caught.value.reason == "STREAM_LOST"
        assert (await stream.ask(item("h", 2, base_length=5))).next_token == 5


async def test_a_stream_that_cannot_be_opened_fails_what_waits(rig: Any) -> None:
    rig_, _ = rig
    channel = open_channel(f"127.0.0.1:{rig_.port}")
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify
    await channel.close()
    stream: ItemStream[Any, Any] = ItemStream(call, lambda items: items, lambda response: response)
    async with asyncio.timeout(60):
        with pytest.raises(PeerError) as caught:
            await stream.ask(item("h"))
    assert caught.value.reason == "STREAM_LOST"


class Judging(Sink):
    """Raises the errors it gets as what they mean, as the orchestrator's sinks do."""

    def receive(self, result: verifier_pb2.VerifyResult) -> bool:
        if result.HasField("error"):
            self.fail(error_of(result.error))
            return True
        if result.next_token < 0:
            raise ValueError("a token below 0")
        return super().receive(result)


@pytest.mark.parametrize("code", [0, 77, -1])
async def test_a_code_that_is_none_is_unknown_and_the_others_go_on(rig: Any, code: int) -> None:
    rig_, stream = rig

    async def answer(asked: verifier_pb2.VerifyItem, _: Any) -> verifier_pb2.VerifyResult:
        result = verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=3)
        if asked.handle == "bad":
            result.error.code = code
        return result

    rig_.echo._answer = answer
    bad, good = Judging(), Judging()
    stream.send(item("bad"), bad)
    stream.send(item("good"), good)
    async with asyncio.timeout(60):
        await bad.over.wait()
        await good.over.wait()
    assert bad.lost is not None and (bad.lost.code, bad.lost.reason) == (Code.UNKNOWN, "UNKNOWN")
    assert good.taken == [3] and good.lost is None


async def test_a_result_that_cannot_be_understood_fails_its_own_item(rig: Any) -> None:
    rig_, stream = rig

    async def answer(asked: verifier_pb2.VerifyItem, _: Any) -> verifier_pb2.VerifyResult:
        await asyncio.sleep(0.05 if asked.handle == "good" else 0)
        token = -1 if asked.handle == "bad" else 3
        return verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=token)

    rig_.echo._answer = answer
    bad, good = Judging(), Judging()
    stream.send(item("bad"), bad)
    stream.send(item("good"), good)
    async with asyncio.timeout(60):
        await bad.over.wait()
        await good.over.wait()
    assert bad.lost is not None and (bad.lost.code, bad.lost.reason) == (Code.INTERNAL, "BAD_RESULT")
    assert good.taken == [3] and good.lost is None


async def test_many_large_items_travel_in_several_messages(rig: Any) -> None:
    rig_, stream = rig
    large = [item(f"h{i}", base_length=i) for i in range(80)]
    for one in large:
        one.traceparent = "x" * 2**20
    results = await asyncio.gather(*map(stream.ask, large))
    assert [result.next_token for result in results] == list(range(80))
    assert max(rig_.echo.byte_counts) <= 5 * 2**20


async def test_an_item_larger_than_a_message_fails_alone_and_by_name(rig: Any) -> None:
    _, stream = rig
    too_large = item("large")
    too_large.traceparent = "x" * MAX_MESSAGE_BYTES
    other = asyncio.create_task(stream.ask(item("other", wait_ms=100, base_length=3)))
    await stream.ask(item("first"))
    with pytest.raises(PeerError) as caught:
        await stream.ask(too_large)
    assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, "ITEM_TOO_LARGE")
    assert (await other).next_token == 3
    assert not stream._waiting


async def test_many_large_results_travel_in_several_messages_and_one_too_large_fails_alone(rig: Any) -> None:
    rig_, stream = rig
    together = asyncio.Event()

    async def answer(asked: verifier_pb2.VerifyItem, _: Any) -> verifier_pb2.VerifyResult:
        if asked.handle == "last":
            together.set()
        await together.wait()
        length = MAX_MESSAGE_BYTES if asked.handle == "large" else 2**20
        result = verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=asked.base_length)
        result.error.message = "x" * length
        return result

    rig_.echo._answer = answer
    names = [*(f"h{i}" for i in range(80)), "large", "last"]
    results = await asyncio.gather(*(stream.ask(item(name, base_length=i)) for i, name in enumerate(names)))
    large = results.pop(80)
    assert [result.next_token for result in results] == [*range(80), 81]
    assert max(rig_.echo.answer_sizes) <= 5 * 2**20
    refusal = error_of(large.error)
    assert (refusal.code, refusal.reason) == (Code.OUT_OF_RANGE, "RESULT_TOO_LARGE")


async def test_an_item_whose_answer_raises_is_refused_and_the_others_go_on(rig: Any) -> None:
    rig_, stream = rig

    async def answer(asked: verifier_pb2.VerifyItem, _: Any) -> verifier_pb2.VerifyResult:
        if asked.handle == "bad":
            raise ZeroDivisionError
        return verifier_pb2.VerifyResult(handle=asked.handle, round=asked.round, next_token=4)

    rig_.echo._answer = answer
    async with asyncio.timeout(60):
        bad, good = await asyncio.gather(stream.ask(item("bad")), stream.ask(item("good")))
    assert error_of(bad.error).code is Code.INTERNAL
    assert good.next_token == 4


async def test_what_is_given_up_is_forgotten(rig: Any) -> None:
    _, stream = rig
    asking = asyncio.create_task(stream.ask(item("asked", wait_ms=60_000)))
    sink, sent = Sink(), item("sent", wait_ms=2000)
    stream.send(sent, sink)
    await stream.ask(item("other"))
    asking.cancel()
    stream.withdraw(sent, sink)
    await asyncio.gather(asking, return_exceptions=True)
    assert not stream._waiting
    await stream.ask(item("later", wait_ms=3000))
    assert sink.taken == [] and sink.lost is None


async def test_a_caller_told_of_a_loss_may_ask_again_at_once(rig: Any) -> None:
    rig_, stream = rig

    class Again(Sink):
        def fail(self, error: PeerError) -> None:
            if self.lost is None:
                self.lost = error
                stream.send(item("h", 2, base_length=3), self)
            else:
                self.over.set()

    again = Again()
    stream.send(item("h", wait_ms=60_000), again)
    await stream.ask(item("other"))
    await rig_.server.stop(0)
    async with asyncio.timeout(60):
        await again.over.wait()


async def test_everybody_hears_of_a_loss_even_if_one_cannot_bear_it(rig: Any) -> None:
    rig_, stream = rig

    class Fragile(Sink):
        def fail(self, error: PeerError) -> None:
            raise ZeroDivisionError

    robust = Sink()
    stream.send(item("fragile", wait_ms=60_000), Fragile())
    stream.send(item("robust", wait_ms=60_000), robust)
    await stream.ask(item("other"))
    await rig_.server.stop(0)
    async with asyncio.timeout(60):
        await robust.over.wait()


async def test_closing_a_stream_fails_what_waits_even_if_it_has_not_begun(rig: Any) -> None:
    _, stream = rig
    before, after = Sink(), Sink()
    stream.send(item("h"), before)
    await stream.close()
    stream.send(item("h", 2), after)
    for sink in (before, after):
        assert sink.lost is not None and sink.lost.reason == "STREAM_LOST"


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
    async with asyncio.timeout(60):
        await stopping


async def test_a_stream_that_is_given_up_fails_what_waits_and_what_comes_then_has_another(rig: Any) -> None:
    _, stream = rig
    error = PeerError(Code.UNAVAILABLE, "STALLED", "")
    late, unread = Sink(), Sink()
    stream.send(item("h", wait_ms=2000, base_length=3), late)
    await stream.ask(item("other"))
    first = stream._run
    stream.send(item("unread"), unread)
    stream.abandon(error)
    assert late.lost is error and unread.lost is error
    asks = [stream.ask(item(f"h{index}", 2, base_length=index, wait_ms=3000)) for index in range(20)]
    answers = asyncio.gather(*asks)
    async with asyncio.timeout(60):
        assert [result.next_token for result in await answers] == list(range(20))
    assert late.taken == [], "its answer came late and is dropped"
    assert stream._run is not first and first.done() and stream.answered_count == 2


class Call:
    """The peer's end of a stream, which takes nothing more until it may and says nothing."""

    def __init__(self) -> None:
        self.written: list[list[verifier_pb2.VerifyItem]] = []
        self.may_take = asyncio.Event()

    async def write(self, items: list[verifier_pb2.VerifyItem]) -> None:
        self.written.append(items)
        await self.may_take.wait()

    async def __aiter__(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    def cancel(self) -> None:
        pass


async def test_the_writer_of_a_stream_that_is_given_up_takes_nothing_from_the_next_one() -> None:
    calls: list[Call] = []

    def open_call(metadata: Any) -> Call:
        calls.append(Call())
        return calls[-1]

    stream: ItemStream[Any, Any] = ItemStream(open_call, lambda items: items, lambda response: response)
    stream.send(first := item("first"), Sink())
    for _ in range(5):
        await asyncio.sleep(0)
    calls[0].may_take.set()
    stream.abandon(PeerError(Code.UNAVAILABLE, "STALLED", ""))
    stream.send(second := item("second"), Sink())
    for _ in range(10):
        await asyncio.sleep(0)
    assert [call.written for call in calls] == [[[first]], [[second]]]
    await stream.close()


async def test_giving_up_a_stream_that_is_not_open_or_has_not_begun_leaves_the_next_one_alone(rig: Any) -> None:
    _, stream = rig
    error = PeerError(Code.UNAVAILABLE, "STALLED", "")
    stream.abandon(error)
    sink = Sink()
    stream.send(item("h"), sink)
    stream.abandon(error)
    assert sink.lost is error
    async with asyncio.timeout(60):
        assert (await stream.ask(item("h", 2, base_length=5))).next_token == 5
