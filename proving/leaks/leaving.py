"""Ways to abandon a turn: cancel it or its call, cut the connection, pass a deadline, delete its
session, or close half of a chat. Peers of a model service end their item streams."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import grpc

from slipstream.agreed import PEER_KEY
from slipstream.cli.local import LocalServices
from slipstream.client import AsyncClient, PeerError, Settings, Structure
from slipstream.rpc.channel import CHANNEL_OPTIONS
from slipstream.rpc.sampling_wire import rule_hash, rule_message
from slipstream.sampling.rule import SamplingRule
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from slipstream.wire.v1 import draft_pb2, draft_pb2_grpc, model_pb2, rule_pb2, verifier_pb2, verifier_pb2_grpc

_LONG = 200
"""Tokens of an abandoned turn."""
_LATEST = 5
"""Latest delta after which it is abandoned."""
_LEAVE_SECONDS = 0.03
_WORDS = ["".join(letters) for letters in product("abcdefgh", repeat=3)]
"""Words of prompts. Their number is bounded, as in a language, because tokenizers caches the last
10,000 words of a thread."""


@dataclass(eq=False, slots=True)
class Scene:
    """The client, and the connections that are abandoned."""

    local: LocalServices
    client: AsyncClient
    rng: random.Random
    ratio: bool | None = field(init=False)
    """True if its turns are under the ratio test. A session keeps to one acceptance."""

    def __post_init__(self) -> None:
        self.ratio = self.rng.choice((None, True))

    def settings(self) -> Settings:
        """Return the settings of a turn, drawn at random."""
        rng = self.rng
        return Settings(
            max_token_count=rng.randrange(1, _LONG),
            temperature=rng.choice((0.0, 1.0)),
            seed=rng.randrange(2**32),
            draft_length=rng.choice((None, 0, 4, "adaptive")),
            ratio=self.ratio,
            top_logprob_count=rng.choice((None, None, 2)),
            structure=rng.choice((None,) * 7 + (Structure(regex="[a-z ]{1,200}"),)),
        )

    def prompt(self) -> str:
        """Return the prompt of a turn."""
        return " ".join(self.rng.choices(_WORDS, k=self.rng.randrange(1, 20)))


async def _some(responses: AsyncIterator[Any], rng: random.Random) -> None:
    """Read a part of the answer."""
    for _ in range(rng.randrange(_LATEST)):
        if await anext(responses, None) is None:
            return


async def cancel_turn(scene: Scene) -> None:
    """Cancel a turn with CancelTurn, and read its last event."""
    session = await scene.client.create_session()
    reply = await session.send(scene.prompt(), scene.settings())
    deltas = reply.deltas()
    await _some(deltas, scene.rng)
    await reply.cancel()
    async for _ in deltas:
        pass


async def cancel_call(scene: Scene) -> None:
    """Cancel the call of a generation without a request id, which ends it."""
    request = orchestrator_pb2.GenerateRequest(text=scene.prompt(), settings=scene.settings().message(), choice_count=2)
    call = scene.client.stub.Generate(request)
    with suppress(grpc.aio.AioRpcError):
        await _some(aiter(call), scene.rng)
    call.cancel()


async def cut_connection(scene: Scene) -> None:
    """Cut a connection silently, under a turn and two watchers."""
    session = await scene.client.create_session()
    message = orchestrator_pb2.SendMessageRequest(
        session_id=session.session_id, content=scene.prompt(), settings=scene.settings().message()
    )
    watch = orchestrator_pb2.WatchTurnRequest(session_id=session.session_id, turn=1)
    async with (
        _relay(scene.local.orchestrator_address) as (address, cut),
        grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel,
    ):
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        calls: list[Any] = [stub.SendMessage(message), stub.WatchTurn(watch), stub.WatchTurn(watch)]
        with suppress(grpc.aio.AioRpcError):
            await _some(aiter(calls[0]), scene.rng)
        cut()
        for call in calls:
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass


async def run_out_of_time(scene: Scene) -> None:
    """Let a deadline pass."""
    session = await scene.client.create_session()
    request = orchestrator_pb2.SendMessageRequest(
        session_id=session.session_id, content=scene.prompt(), settings=scene.settings().message()
    )
    with suppress(grpc.aio.AioRpcError):
        async for _ in scene.client.stub.SendMessage(request, timeout=scene.rng.uniform(0.001, _LEAVE_SECONDS)):
            pass


async def delete_session(scene: Scene) -> None:
    """Delete the session under its turn."""
    session = await scene.client.create_session()
    reply = await session.send(scene.prompt(), scene.settings())
    with suppress(PeerError):
        deltas = reply.deltas()
        await _some(deltas, scene.rng)
        await session.delete()
        async for _ in deltas:
            pass


async def half_close_chat(scene: Scene) -> None:
    """Close a chat's sending half while messages wait. Read the other half to its end, or leave
    it."""
    call = scene.client.stub.Chat()
    await call.write(orchestrator_pb2.ChatRequest(start=orchestrator_pb2.StartChat()))
    for _ in range(scene.rng.randrange(1, 4)):
        said = orchestrator_pb2.UserMessage(content=scene.prompt(), settings=scene.settings().message())
        await call.write(orchestrator_pb2.ChatRequest(message=said))
    await _some(aiter(call), scene.rng)
    await call.done_writing()
    if scene.rng.random() < 0.5:
        call.cancel()
    else:
        async for _ in call:
            pass


async def leave_chat(scene: Scene) -> None:
    """Cancel a chat's call while both halves are open."""
    call = scene.client.stub.Chat()
    await call.write(orchestrator_pb2.ChatRequest(start=orchestrator_pb2.StartChat()))
    said = orchestrator_pb2.UserMessage(content=scene.prompt(), settings=scene.settings().message())
    await call.write(orchestrator_pb2.ChatRequest(message=said))
    await asyncio.sleep(scene.rng.uniform(0, _LEAVE_SECONDS))
    call.cancel()


async def leave_items(scene: Scene) -> None:
    """End a peer's streams to verifier and draft with items and runs in work."""
    key = ((PEER_KEY, secrets.token_hex(16)),)
    rule = rule_message(SamplingRule(temperature=1.0, seed=scene.rng.randrange(2**32)), 2**31)
    fields: dict[str, Any] = {"round": 1, "rule": rule, "rule_hash": rule_hash(rule), "open": {}}
    fields["tail"] = [scene.rng.randrange(3, 200) for _ in range(100)]
    names = [secrets.token_hex(16) for _ in range(8)]
    async with (
        grpc.aio.insecure_channel(scene.local.verifier_address) as verifier,
        grpc.aio.insecure_channel(scene.local.draft_address) as draft,
    ):
        calls: list[Any] = [
            verifier_pb2_grpc.VerifierServiceStub(verifier).Verify(metadata=key),
            draft_pb2_grpc.DraftServiceStub(draft).Propose(metadata=key),
            verifier_pb2_grpc.VerifierServiceStub(verifier).Run(metadata=key),
        ]
        verify = [verifier_pb2.VerifyItem(handle=name, **fields) for name in names]
        propose = [draft_pb2.ProposeItem(handle=name, draft_length=32, **fields) for name in names]
        await calls[0].write(verifier_pb2.VerifyRequest(items=verify))
        await calls[1].write(draft_pb2.ProposeRequest(items=propose))
        await calls[2].write(verifier_pb2.RunRequest(items=_runs(scene, rule, fields["tail"])))
        await asyncio.sleep(scene.rng.uniform(0, _LEAVE_SECONDS))
        for call in calls:
            call.cancel()


def _runs(scene: Scene, rule: rule_pb2.SamplingRule, tail: list[int]) -> Iterator[verifier_pb2.RunItem]:
    """Yield the starts of runs of which some pause early, and stops for some of them."""
    for _ in range(8):
        length = len(tail) + scene.rng.choice((1, 4, _LONG))
        start = verifier_pb2.StartRun(
            tail=tail, until_length=len(tail) + _LONG, granted_length=length, rule=rule, open=model_pb2.OpenSequence()
        )
        item = verifier_pb2.RunItem(handle=secrets.token_hex(16), round=1, start=start)
        yield item
        if scene.rng.random() < 0.2:
            yield verifier_pb2.RunItem(handle=item.handle, round=1, stop=verifier_pb2.StopRun())


WAYS: tuple[Callable[[Scene], Awaitable[None]], ...] = (
    cancel_turn,
    cancel_call,
    cut_connection,
    run_out_of_time,
    delete_session,
    half_close_chat,
    leave_chat,
    leave_items,
)


@asynccontextmanager
async def _relay(upstream: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Yield an address that relays connections to another, and a function that cuts them."""
    transports: list[asyncio.BaseTransport] = []
    host, _, port = upstream.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, port)
        transports.extend((writer.transport, up_writer.transport))
        await asyncio.gather(carry(reader, up_writer), carry(up_reader, writer))

    def cut() -> None:
        server.close()
        for transport in transports:
            transport.abort()  # type: ignore[attr-defined]

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    finally:
        cut()
