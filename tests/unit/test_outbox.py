"""What one message holds is tested with the streams; here, that answers leave before more is
read."""

from __future__ import annotations

import asyncio

from slipstream.rpc.outbox import Outbox, let_answers_leave
from slipstream.wire.v1 import verifier_pb2


async def test_what_came_of_a_message_has_left_before_the_next_is_read() -> None:
    outbox: Outbox[verifier_pb2.VerifyItem] = Outbox()
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    left: list[str] = []

    async def turn() -> None:
        item = verifier_pb2.VerifyItem(handle=await answered)
        outbox.put(item, item.ByteSize())

    async def write() -> None:
        left.extend(item.handle for item in await outbox.batch())

    tasks = [asyncio.create_task(turn()), asyncio.create_task(write())]
    await asyncio.sleep(0)
    answered.set_result("read")
    await let_answers_leave()
    assert left == ["read"]
    await asyncio.gather(*tasks)


async def test_a_job_computed_on_the_loop_has_answered_too() -> None:
    """As a model service does it: what was read is computed by a call of the loop's."""
    outbox: Outbox[verifier_pb2.VerifyResult] = Outbox()
    left: list[int] = []

    def compute() -> None:
        result = verifier_pb2.VerifyResult(round=7)
        outbox.put(result, result.ByteSize())

    async def write() -> None:
        left.extend(result.round for result in await outbox.batch())

    writing = asyncio.create_task(write())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(compute)
    await let_answers_leave()
    assert left == [7]
    await writing
