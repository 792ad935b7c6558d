"""An orchestrator under load, over gRPC.

A conversation is a Chat stream with a session of its own, which is deleted at its end. One with a
history is a single answer (Generate), because a session begins with its own first message; so is a
raw text.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import grpc

from slipstream.bench.prompts import Conversation
from slipstream.bench.records import Acceptance, Record
from slipstream.bench.server import Api
from slipstream.client import Settings
from slipstream.client.requests import answer, generate, tokenize
from slipstream.reasons import Reason
from slipstream.rpc.channel import open_channel
from slipstream.rpc.status import PeerError, StreamLostError, error_of, error_of_call
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, turn_pb2

_CONNECTIONS = 16
_QUICK_SECONDS = 30.0
_DELETE_SECONDS = 10.0


class SlipstreamServer:
    """An orchestrator at ``host:port``, by TLS with ``credentials``."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        *,
        api: Api = "chat",
        timeout: float = 600.0,
        connections: int = _CONNECTIONS,
    ) -> None:
        self.name = name
        self._base = settings
        self._api = api
        self._timeout = timeout
        self._metadata = tuple(metadata)
        self._channels = [open_channel(name, credentials) for _ in range(connections)]
        self._stubs = itertools.cycle([orchestrator_pb2_grpc.OrchestratorServiceStub(one) for one in self._channels])

    async def describe(self) -> str:
        """Return the target's name. PeerError."""
        request = orchestrator_pb2.GetServerInfoRequest()
        try:
            found = await next(self._stubs).GetServerInfo(request, metadata=self._metadata, timeout=_QUICK_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        return found.target.name

    async def count_tokens(self, text: str) -> int | None:
        """Return what Tokenize counts."""
        request = tokenize(text, False, None, None, token_strings=False)
        try:
            found = await next(self._stubs).Tokenize(request, metadata=self._metadata, timeout=_QUICK_SECONDS)
        except grpc.aio.AioRpcError:
            return None
        return len(found.token_ids)

    async def counters(self) -> Acceptance | None:
        """Return nothing: every turn reports its own."""
        return None

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            await channel.close()

    async def hold(self, conversation: Conversation, intended: float) -> AsyncIterator[Record]:
        """Hold a conversation."""
        stub = next(self._stubs)
        system = conversation.history[0][1] if [role for role, _ in conversation.history] == ["system"] else None
        if self._api == "chat" and (system is not None or not conversation.history):
            chat = self._chat(stub, conversation, system, intended)
            async with contextlib.aclosing(chat):
                async for record in chat:
                    yield record
        else:
            yield await self._single(stub, conversation, intended)

    async def _single(self, stub: Any, conversation: Conversation, intended: float) -> Record:
        settings = self._settings(conversation.max_tokens)
        if self._api == "chat":
            messages = [*conversation.history, ("user", conversation.prompts[0])]
            request = answer(messages, settings, None, None)
        else:
            request = generate(conversation.prompts[0], settings, None)
        record = Record(intended, sent=time.monotonic())
        with _noted(record):
            async with asyncio.timeout(self._timeout):
                responses = stub.Generate(request, metadata=self._metadata)
                await read_turn((response.event async for response in responses), record)
        return record

    async def _chat(
        self, stub: Any, conversation: Conversation, system: str | None, intended: float
    ) -> AsyncGenerator[Record, None]:
        """Send the prompts over a Chat stream. The first one counts from before the session is
        opened."""
        call = stub.Chat(metadata=self._metadata)
        start = orchestrator_pb2.StartChat(system=system, settings=self._settings(conversation.max_tokens).message())
        responses = call.__aiter__()
        opening: asyncio.Task[str] | None = None
        try:
            for prompt in conversation.prompts:
                record = Record(intended, sent=time.monotonic())
                with _noted(record):
                    async with asyncio.timeout(self._timeout):
                        # A task of its own outlives a cancelled chat, so that its session is known.
                        opening = opening or asyncio.create_task(_open(call, start, responses))
                        await asyncio.shield(opening)
                        await call.write(
                            orchestrator_pb2.ChatRequest(message=orchestrator_pb2.UserMessage(content=prompt))
                        )
                        await read_turn(_turn_events(responses), record)
                yield record
                if record.error:
                    return
                intended = time.monotonic()
        finally:
            if opening is not None:
                await self._delete(stub, opening)
            call.cancel()

    async def _delete(self, stub: Any, opening: asyncio.Task[str]) -> None:
        """Delete the session of a chat, if it was opened. Raises nothing: the server may be
        gone."""
        with contextlib.suppress(grpc.aio.AioRpcError, PeerError, TimeoutError):
            session_id = await asyncio.wait_for(opening, _DELETE_SECONDS)
            request = orchestrator_pb2.DeleteSessionRequest(session_id=session_id)
            await stub.DeleteSession(request, metadata=self._metadata, timeout=_DELETE_SECONDS)

    def _settings(self, max_tokens: int) -> Settings:
        return replace(self._base, max_token_count=max_tokens)


@contextlib.contextmanager
def _noted(record: Record) -> Any:
    """Note in a record what its turn fails with."""
    try:
        yield
    except TimeoutError:
        record.fail("timed out")
    except grpc.aio.AioRpcError as error:
        found = error_of_call(error)
        record.fail(found.reason, found.retry_after)
    except PeerError as error:
        record.fail(error.reason, error.retry_after)


async def _open(
    call: Any, start: orchestrator_pb2.StartChat, responses: AsyncIterator[orchestrator_pb2.ChatResponse]
) -> str:
    """Open a chat's session; returns its id. PeerError, AioRpcError."""
    await call.write(orchestrator_pb2.ChatRequest(start=start))
    async for event in responses:
        if event.WhichOneof("event") == "opened":
            return event.opened.session.id
        _refuse(event)
    raise StreamLostError("the chat ended before its session was opened")


async def _turn_events(events: AsyncIterator[orchestrator_pb2.ChatResponse]) -> AsyncIterator[turn_pb2.TurnEvent]:
    """Yield the events of a chat's turns. Raises PeerError if the chat refuses a command or
    closes."""
    async for event in events:
        if event.WhichOneof("event") == "turn":
            yield event.turn
        else:
            _refuse(event)


def _refuse(event: orchestrator_pb2.ChatResponse) -> None:
    """Raise the error of a chat's event, if it is one."""
    kind = event.WhichOneof("event")
    if kind in ("failed", "closing"):
        raise error_of(getattr(event, kind).error)


async def read_turn(events: AsyncIterator[turn_pb2.TurnEvent], record: Record) -> None:
    """Read a turn to its end. PeerError if it fails, or if the stream ends first."""
    async for event in events:
        now = time.monotonic()
        match event.WhichOneof("event"):
            case "delta" if event.delta.text:  # as over HTTP, where a token without text is no chunk
                record.chunks.append(now)
            case "failed":
                raise error_of(event.failed.error)
            case "finished":
                record.ended = now
                _note_end(event.finished, record)
                return
    raise StreamLostError(f"{Reason.STREAM_LOST}: the turn has not ended")


def _note_end(finished: turn_pb2.TurnFinished, record: Record) -> None:
    record.prompt_tokens = finished.usage.prompt_token_count
    record.output_tokens = finished.usage.generated_token_count
    told = finished.speculation
    record.acceptance = Acceptance(told.draft_token_count, told.accepted_token_count, told.draft_count)
