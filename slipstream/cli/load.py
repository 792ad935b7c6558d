"""A load of bidirectional sessions on an orchestrator, and what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc

from slipstream.client import Settings
from slipstream.reasons import Reason
from slipstream.rpc.channel import open_channel
from slipstream.rpc.status import error_of, error_of_call
from slipstream.v1 import orchestrator_pb2, orchestrator_pb2_grpc, turn_pb2

_MAX_CONNECTIONS = 16
_DELETE_SECONDS = 10.0
_WORDS = "how where which what tell me about the a an of list table module function socket thread file".split()


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """``sessions`` chats of ``turns`` messages each. With a ``rate`` they begin at so many a
    second, drawn from a Poisson process, however long the answers take; without one at most
    ``concurrency`` run at a time.
    """

    sessions: int = 16
    turns: int = 2
    concurrency: int = 8
    rate: float | None = None
    prompt_words: int = 12
    goal_first_seconds: float = 1.0
    """Goodput counts the tokens of turns whose first token came within this,"""
    goal_token_seconds: float = 0.1
    """Most seconds that a turn's later tokens may take on average."""
    seed: int = 0
    generation: Settings = field(default_factory=Settings)


@dataclass(slots=True)
class TurnRecord:
    """One turn as its client saw it, in seconds."""

    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between messages, divided by the tokens that the later one brought."""
    total: float = 0.0
    token_count: int = 0


@dataclass(slots=True)
class Percentiles:
    """Percentiles of a set of times, in seconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Nearest rank; zeros of nothing."""
        ordered = sorted(values) or [0.0]
        return cls(*(ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.50, 0.95, 0.99)))


@dataclass(slots=True)
class LoadReport:
    """Results of a load."""

    turn_count: int
    failures: dict[str, int]
    seconds: float
    token_count: int
    tokens_per_second: float
    goodput: float
    """Tokens a second of the turns that met both goals."""
    time_to_first_token: Percentiles
    inter_token: Percentiles
    turn: Percentiles

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


class _Load:
    def __init__(
        self,
        address: str,
        settings: LoadSettings,
        on_turn: Callable[[], None],
        credentials: grpc.ChannelCredentials | None,
        metadata: Sequence[tuple[str, str]],
    ) -> None:
        count = min(settings.sessions, _MAX_CONNECTIONS)
        self._channels = [open_channel(address, credentials) for _ in range(count)]
        self._metadata = tuple(metadata)
        self._settings = settings
        self._on_turn = on_turn
        self._rng = random.Random(settings.seed)
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._stubs = [orchestrator_pb2_grpc.OrchestratorServiceStub(channel) for channel in self._channels]
        self._openings: dict[asyncio.Task[str], orchestrator_pb2_grpc.OrchestratorServiceAsyncStub] = {}
        """Tasks that open the sessions that are not deleted yet. A task outlives its cancelled
        chat, so that its session is known."""
        self.turns: list[TurnRecord] = []
        self.failures: dict[str, int] = {}

    async def run(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            for index in range(self._settings.sessions):
                if self._settings.rate is not None and index:
                    await asyncio.sleep(self._rng.expovariate(self._settings.rate))
                tasks.append(asyncio.create_task(self._session(index)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*map(self._delete, list(self._openings)))
            for channel in self._channels:
                await channel.close()

    async def _delete(self, opening: asyncio.Task[str]) -> None:
        """Delete the session of a chat, if it was opened. Raises nothing: the server may be
        gone."""
        try:
            session_id = await asyncio.wait_for(opening, _DELETE_SECONDS)
            request = orchestrator_pb2.DeleteSessionRequest(session_id=session_id)
            await self._openings[opening].DeleteSession(request, metadata=self._metadata, timeout=_DELETE_SECONDS)
        except (grpc.aio.AioRpcError, _TurnFailedError, TimeoutError):
            pass
        del self._openings[opening]

    async def _session(self, index: int) -> None:
        if self._settings.rate is None:
            async with self._gate:
                await self._chat(index)
        else:
            await self._chat(index)

    async def _chat(self, index: int) -> None:
        stub = self._stubs[index % len(self._stubs)]
        done = 0
        opening: asyncio.Task[str] | None = None
        try:
            call = stub.Chat(metadata=self._metadata)
            start = orchestrator_pb2.StartChat(settings=self._settings.generation.message())
            responses = call.__aiter__()
            opening = asyncio.create_task(_open(call, start, responses))
            self._openings[opening] = stub
            await asyncio.shield(opening)
            events = _turn_events(responses)
            for turn in range(self._settings.turns):
                await self._turn(call, events, self._prompt(index, turn))
                done += 1
                self._on_turn()
            await call.done_writing()
            async for _ in events:
                pass
        except grpc.aio.AioRpcError as error:
            self._fail(error_of_call(error).reason, done)
        except _TurnFailedError as error:
            self._fail(str(error), done)
        if opening is not None:
            await self._delete(opening)

    async def _turn(self, call: object, events: AsyncIterator[turn_pb2.TurnEvent], prompt: str) -> None:
        record = TurnRecord()
        started = last = time.monotonic()
        message = orchestrator_pb2.UserMessage(content=prompt)
        await call.write(orchestrator_pb2.ChatRequest(message=message))  # type: ignore[attr-defined]
        async for event in events:
            kind = event.WhichOneof("event")
            if kind == "failed":
                raise _TurnFailedError(error_of(event.failed.error).reason)
            now = time.monotonic()
            if kind == "delta" and event.delta.token_ids:
                count = len(event.delta.token_ids)
                if record.token_count:
                    record.gaps.extend([(now - last) / count] * count)
                else:
                    record.first = now - started
                record.token_count += count
                last = now
            elif kind == "finished":
                record.total = now - started
                self.turns.append(record)
                return
        raise _TurnFailedError(Reason.STREAM_LOST)

    def _prompt(self, index: int, turn: int) -> str:
        rng = random.Random(f"{self._settings.seed} {index} {turn}")
        return " ".join(rng.choice(_WORDS) for _ in range(self._settings.prompt_words))

    def _fail(self, reason: str, done: int) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1
        for _ in range(self._settings.turns - done):
            self._on_turn()


class _TurnFailedError(Exception):
    """A turn, its message or the chat ended with an error in band."""


async def _open(
    call: Any, start: orchestrator_pb2.StartChat, responses: AsyncIterator[orchestrator_pb2.ChatResponse]
) -> str:
    """Open a chat's session; returns its id. _TurnFailedError, AioRpcError."""
    await call.write(orchestrator_pb2.ChatRequest(start=start))
    async for event in responses:
        match event.WhichOneof("event"):
            case "opened":
                return event.opened.session.id
            case "failed":
                raise _TurnFailedError(error_of(event.failed.error).reason)
            case "closing":
                raise _TurnFailedError(error_of(event.closing.error).reason)
    raise _TurnFailedError(Reason.STREAM_LOST)


async def _turn_events(events: AsyncIterator[orchestrator_pb2.ChatResponse]) -> AsyncIterator[turn_pb2.TurnEvent]:
    """Yield the events of a chat's turns. Raises _TurnFailedError if the chat refuses a command or
    closes."""
    async for event in events:
        kind = event.WhichOneof("event")
        if kind == "turn":
            yield event.turn
        elif kind == "failed":
            raise _TurnFailedError(error_of(event.failed.error).reason)
        elif kind == "closing":
            raise _TurnFailedError(error_of(event.closing.error).reason)


def run_load(
    address: str,
    settings: LoadSettings,
    on_turn: Callable[[], None] = lambda: None,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    metadata: Sequence[tuple[str, str]] = (),
) -> LoadReport:
    """Run the load, by TLS with ``credentials`` and with ``metadata`` for every call; ``on_turn``
    is told of each turn that has ended. What fails is counted by its reason."""

    async def run() -> LoadReport:
        load = _Load(address, settings, on_turn, credentials, metadata)
        started = time.monotonic()
        await load.run()
        return _report(load, settings, time.monotonic() - started)

    return asyncio.run(run())


def _report(load: _Load, settings: LoadSettings, seconds: float) -> LoadReport:
    tokens = sum(turn.token_count for turn in load.turns)
    good = sum(
        turn.token_count
        for turn in load.turns
        if turn.first <= settings.goal_first_seconds
        and sum(turn.gaps) <= settings.goal_token_seconds * max(1, len(turn.gaps))
    )
    return LoadReport(
        turn_count=len(load.turns),
        failures=load.failures,
        seconds=seconds,
        token_count=tokens,
        tokens_per_second=tokens / seconds,
        goodput=good / seconds,
        time_to_first_token=Percentiles.of([turn.first for turn in load.turns]),
        inter_token=Percentiles.of([gap for turn in load.turns for gap in turn.gaps]),
        turn=Percentiles.of([turn.total for turn in load.turns]),
    )
