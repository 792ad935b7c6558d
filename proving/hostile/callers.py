"""Hostile callers: they send what `requests` draws, and read, leave, wait or vanish at random."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from proving.hostile.judge import Judge
from proving.hostile.requests import Asked, Belongings, Requests
from slipstream.agreed import PEER_KEY
from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.v1 import orchestrator_pb2
from slipstream.wire.v1 import draft_pb2, verifier_pb2

_ANSWER_SECONDS = 300.0
"""Longest time of an answer on a busy machine."""
_LEAVE_SECONDS = 0.05
_IDLE_SECONDS = 0.3
_BEHAVIOURS = ("reads",) * 16 + ("cancels", "deadline", "never reads", "drops")
_MOST_IN_A_STREAM = 6
_OPTIONS = (
    *(option for option in CHANNEL_OPTIONS if "max_send" not in option[0]),
    ("grpc.max_send_message_length", -1),
)

_STARTING, _OFTEN = ("Generate", "CreateSession", "SendMessage", "Chat"), 3
"""Methods that start work, and how much more often they are called."""
_TRACEPARENTS = (
    f"00-{'a' * 32}-{'b' * 16}-01",
    f"00-{'0' * 32}-{'0' * 16}-01",
    f"ff-{'a' * 32}-{'b' * 16}-01",
    "00-x-y-z",
    "",
)

Budget = Callable[[int], bool]
"""Takes messages from a total. Returns False once the total is used up."""


class Caller:
    """One connection to one address, one call after another."""

    def __init__(
        self,
        address: str,
        service: ServiceDescriptor,
        rng: random.Random,
        belongings: Belongings,
        judge: Judge,
        budget: Budget,
    ) -> None:
        self._address = address
        self._service = service
        self._rng = rng
        self._belongings = belongings
        self._requests = Requests(rng, belongings)
        self._judge = judge
        self._budget = budget
        self._metadata = ((PEER_KEY, rng.randbytes(16).hex()), ("traceparent", rng.choice(_TRACEPARENTS)))
        self._methods = [method for method in service.methods for _ in range(_OFTEN if method.name in _STARTING else 1)]

    async def run(self) -> None:
        """Send messages until the total is used up."""
        channel = self._open()
        try:
            while await self._one_call(channel):
                if self._rng.random() < 0.002:
                    await channel.close()
                    channel = self._open()
        finally:
            await channel.close()

    def _open(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._address, options=_OPTIONS)

    async def _one_call(self, channel: grpc.aio.Channel) -> bool:
        method = self._rng.choice(self._methods)
        count = self._rng.randrange(1, _MOST_IN_A_STREAM) if method.client_streaming else 1
        asked: list[Asked] = []
        while len(asked) < count and all(each.is_message and not each.is_huge for each in asked):
            asked.append(
                self._requests.draw(method)
            )  # what ends a call comes last: no client's write is to meet its end
        parts = sum(each.parts for each in asked)
        if not self._budget(parts):
            return False
        self._judge.sent(self._service.name, parts)
        behaviour = self._rng.choice(_BEHAVIOURS)
        call = _Call(f"{self._service.name}/{method.name}", method, asked, self._judge, self._metadata)
        if behaviour == "reads":
            await call.read(channel, _ANSWER_SECONDS)
        elif behaviour == "deadline":
            await call.read(channel, self._rng.uniform(0.0005, _LEAVE_SECONDS), left=True)
        elif behaviour == "never reads":
            await call.ignore(channel, _IDLE_SECONDS)
        elif behaviour == "cancels":
            await _left(call.read(channel, _ANSWER_SECONDS, left=True), self._rng.uniform(0, _LEAVE_SECONDS))
        else:
            own = self._open()
            reading = asyncio.ensure_future(call.read(own, _ANSWER_SECONDS, left=True))
            await asyncio.sleep(self._rng.uniform(0, _LEAVE_SECONDS))
            await own.close()
            await asyncio.gather(reading, return_exceptions=True)
        await self._keep(channel, call.opened)
        return True

    async def _keep(self, channel: grpc.aio.Channel, opened: Sequence[str]) -> None:
        """Add the sessions that a call created to this caller's. The oldest ones are dropped."""
        mine = self._belongings.sessions
        for session_id in opened:
            if session_id in mine or session_id in self._belongings.others:
                continue
            if len(mine) == mine.maxlen:
                request = orchestrator_pb2.DeleteSessionRequest(session_id=mine.popleft()).SerializeToString()
                delete: Any = channel.unary_unary("/slipstream.v1.OrchestratorService/DeleteSession")
                try:
                    await delete(request, timeout=_ANSWER_SECONDS)
                except grpc.aio.AioRpcError as error:
                    self._judge.call_ended("OrchestratorService/DeleteSession", error)
            mine.append(session_id)


class _Call:
    """One call of a method, of any of the three kinds."""

    def __init__(
        self,
        where: str,
        method: MethodDescriptor,
        asked: Sequence[Asked],
        judge: Judge,
        metadata: Any,
    ) -> None:
        self.opened: list[str] = []
        """Sessions that the answers mention."""
        self._where = where
        self._service = where.partition("/")[0]
        self._method = method
        self._asked = asked
        self._judge = judge
        self._metadata = metadata
        self._answer = GetMessageClass(method.output_type)
        self._finals: Counter[tuple[str, int]] = Counter()

    async def read(self, channel: grpc.aio.Channel, seconds: float, *, left: bool = False) -> None:
        """Read the whole answer and judge it. ``left``: the call may end before the answer is
        complete."""
        malformed = not all(each.is_message for each in self._asked)
        try:
            if not self._method.server_streaming:
                self._take(await self._begin(channel, seconds))
            else:
                async for data in self._begin(channel, seconds):
                    self._take(data)
        except grpc.aio.AioRpcError as error:
            huge = any(each.is_huge for each in self._asked)
            self._judge.call_ended(self._where, error, malformed=malformed, huge=huge, left=left)
            return
        except asyncio.CancelledError:
            if left:
                return
            raise
        if malformed:
            self._judge.complain(f"{self._where}: what is no message was answered")
        items = Counter(item for each in self._asked for item in each.items)
        # Some items of runs and of guesses have no answer: hints, grants, commits, stops, starts
        # that are repeated or overtaken.
        if (self._finals - items) if self._method.name in ("Run", "Draft") else items != self._finals:
            self._judge.complain(f"{self._where}: {items.total()} items got {self._finals.total()} answers")
        if not items:
            self._judge.fine(self._service)

    async def ignore(self, channel: grpc.aio.Channel, seconds: float) -> None:
        """Send a request, read nothing, half-close nothing, and leave after a while."""
        call = self._begin(channel, _ANSWER_SECONDS, half_closes=False)
        await asyncio.sleep(seconds)
        call.cancel()

    def _begin(self, channel: grpc.aio.Channel, seconds: float, *, half_closes: bool = True) -> Any:
        path = f"/{self._method.containing_service.full_name}/{self._method.name}"
        options: dict[str, Any] = {"timeout": seconds, "metadata": self._metadata}
        method: Any
        if self._method.client_streaming:
            method = channel.stream_stream(path)
            return method(self._send(half_closes), **options)
        method = channel.unary_stream(path) if self._method.server_streaming else channel.unary_unary(path)
        return method(self._asked[0].data, **options)

    async def _send(self, half_closes: bool) -> AsyncIterator[bytes]:
        for each in self._asked:
            yield each.data
        if not half_closes:
            await asyncio.sleep(_ANSWER_SECONDS)

    def _take(self, data: bytes) -> None:
        """Judge the sessions, items and errors in one response."""
        response: Any = self._answer.FromString(data)
        fields = response.DESCRIPTOR.fields_by_name
        if "results" in fields:
            for result in response.results:
                if _is_final(result):
                    self._finals[result.handle, result.round] += 1
                self._judge_in_band(result)
        elif self._method.name in ("CreateSession", "ForkSession"):
            self.opened.append(response.session.id)
        elif self._method.name == "Chat":
            if response.HasField("opened"):
                self.opened.append(response.opened.session.id)
            for kind in ("failed", "closing"):
                if response.HasField(kind):
                    self._judge.status(self._where, getattr(response, kind).error)
            if response.turn.HasField("failed"):
                self._judge.status(self._where, response.turn.failed.error)
        elif "event" in fields and response.event.HasField("failed"):
            self._judge.status(self._where, response.event.failed.error)

    def _judge_in_band(self, result: Any) -> None:
        if result.HasField("error"):
            self._judge.status(self._where, result.error)
        else:
            self._judge.fine(self._service)


def _is_final(result: Any) -> bool:
    """Return whether no other result of the item may follow."""
    if isinstance(result, verifier_pb2.RunResult):
        return result.HasField("error") or result.end != verifier_pb2.RUN_END_UNSPECIFIED
    if isinstance(result, draft_pb2.DraftResult):
        return result.HasField("error") or result.final
    return True


async def _left(reading: Awaitable[None], seconds: float) -> None:
    """Cancel the call after a while."""
    task = asyncio.ensure_future(reading)
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
