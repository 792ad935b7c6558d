"""An OrchestratorService whose turns say what is written below and whose streams break when told:
for faults that the real one does not have on order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from slipstream.errors import SlipstreamError
from slipstream.rpc.status import status_of
from slipstream.v1 import orchestrator_pb2 as pb
from slipstream.v1 import orchestrator_pb2_grpc, turn_pb2

TOKENS = list(range(3, 43))
TEXT = "".join(chr(65 + token % 26) for token in TOKENS)

_Servicer: Any = orchestrator_pb2_grpc.OrchestratorServiceServicer  # its type stub would have every method here

Breaking = Callable[[turn_pb2.TurnEvent, int], turn_pb2.TurnEvent | None]
"""Given an event and how many came before it on its stream: what to send instead; None ends the
stream there."""


def dies_after(count: int) -> Breaking:
    """The connection is gone after so many events."""

    def breaking(event: turn_pb2.TurnEvent, index: int) -> turn_pb2.TurnEvent | None:
        if index == count:
            raise ConnectionResetError
        return event

    return breaking


def ends_after(count: int) -> Breaking:
    """The stream ends with OK and without the turn's last event."""
    return lambda event, index: event if index < count else None


def leaves_out(count: int) -> Breaking:
    """One event is missing."""

    def breaking(event: turn_pb2.TurnEvent, index: int) -> turn_pb2.TurnEvent | None:
        if index == count:
            event.delta.token_offset += 1
            del event.delta.token_ids[0]
        return event

    return breaking


def fails_after(count: int, error: SlipstreamError) -> Breaking:
    """The turn itself cannot go on after so many events."""

    def breaking(event: turn_pb2.TurnEvent, index: int) -> turn_pb2.TurnEvent | None:
        if index < count:
            return event
        failed = turn_pb2.TurnFailed(error=status_of(error), text="...", usage={"generated_token_count": 8})
        return turn_pb2.TurnEvent(turn=event.turn, failed=failed) if index == count else None

    return breaking


@dataclass
class FakeOrchestrator(_Servicer):  # type: ignore[misc]
    """Turns of one session, one for each request_id."""

    pause_at: int = len(TOKENS) + 1
    """A turn that has come so far stays there until it is cancelled."""
    silent: bool = False
    """Streams do not even say that a turn has begun, except to those who ask a second time."""
    breakings: list[Breaking] = field(default_factory=list)
    """For the streams to come, one each."""
    asked: list[Any] = field(default_factory=list)
    """Every request for a turn's events or end."""
    turns: dict[str, int] = field(default_factory=dict)
    cancelled: dict[int, threading.Event] = field(default_factory=dict)

    def CreateSession(self, request: Any, context: Any) -> pb.CreateSessionResponse:
        return pb.CreateSessionResponse(session={"id": "s"})

    def SendMessage(self, request: Any, context: Any) -> Iterator[pb.SendMessageResponse]:
        known = request.request_id in self.turns
        turn = self.turns.setdefault(request.request_id, len(self.turns) + 1)
        for event in self._events(request, context, turn, request.after_token_count, heard=known):
            yield pb.SendMessageResponse(event=event)

    def Generate(self, request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
        known = request.request_id in self.turns
        turn = self.turns.setdefault(request.request_id, len(self.turns) + 1)
        position = (list(request.after_token_counts) or [0])[0]
        for event in self._events(request, context, turn, position, heard=known):
            yield pb.GenerateResponse(event=event)

    def WatchTurn(self, request: Any, context: Any) -> Iterator[pb.WatchTurnResponse]:
        for event in self._events(request, context, request.turn, request.after_token_count, heard=True):
            yield pb.WatchTurnResponse(event=event)

    def CancelTurn(self, request: Any, context: Any) -> pb.CancelTurnResponse:
        self.asked.append(request)
        self._end_of(request.turn).set()
        return pb.CancelTurnResponse()

    def _end_of(self, turn: int) -> threading.Event:
        return self.cancelled.setdefault(turn, threading.Event())

    def _events(
        self, request: Any, context: Any, turn: int, position: int, *, heard: bool
    ) -> Iterator[turn_pb2.TurnEvent]:
        self.asked.append(request)
        breaking = self.breakings.pop(0) if self.breakings else lambda event, index: event
        if self.silent and not heard:
            wait_for(self._end_of(turn), context)
        for index, event in enumerate(self._story(turn, position, context)):
            try:
                changed = breaking(event, index)
            except ConnectionResetError:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            if changed is None:
                return
            yield changed

    def _story(self, turn: int, position: int, context: Any) -> Iterator[turn_pb2.TurnEvent]:
        end = self._end_of(turn)
        yield turn_pb2.TurnEvent(turn=turn, started=turn_pb2.TurnStarted(session_id="s", seed=1))
        for at in range(position, len(TOKENS), 2):
            if at >= self.pause_at:
                wait_for(end, context)
            if end.is_set():
                break
            delta = turn_pb2.TurnDelta(text=TEXT[at : at + 2], token_ids=TOKENS[at : at + 2], token_offset=at)
            yield turn_pb2.TurnEvent(turn=turn, delta=delta)
        reason = turn_pb2.FINISH_REASON_CANCELLED if end.is_set() else turn_pb2.FINISH_REASON_MAX_TOKENS
        yield turn_pb2.TurnEvent(turn=turn, finished=turn_pb2.TurnFinished(finish_reason=reason))


def wait_for(event: threading.Event, context: Any) -> None:
    """Until it is set or the caller is gone."""
    while context.is_active() and not event.wait(0.01):
        pass


@contextmanager
def serving(fake: FakeOrchestrator, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """Its address; plaintext without credentials."""
    server = grpc.server(futures.ThreadPoolExecutor(16))
    orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(fake, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
