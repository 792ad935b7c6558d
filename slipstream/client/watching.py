"""The state of watching a turn, or all turns of a request with several choices. No I/O.

A watcher sends ``request()``, hands each response to ``take_response``, and begins the next stream
``delay_after`` a loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from slipstream.client.attempts import Attempts, is_lost
from slipstream.client.requests import TurnRequest
from slipstream.client.results import Delta
from slipstream.client.turn import Turn
from slipstream.errors import Code
from slipstream.rpc.status import PeerError
from slipstream.v1 import orchestrator_pb2

TurnResponse = (
    orchestrator_pb2.GenerateResponse | orchestrator_pb2.SendMessageResponse | orchestrator_pb2.WatchTurnResponse
)

METHODS: Mapping[type[TurnRequest], str] = {
    orchestrator_pb2.GenerateRequest: "Generate",
    orchestrator_pb2.SendMessageRequest: "SendMessage",
    orchestrator_pb2.WatchTurnRequest: "WatchTurn",
}
"""The service's method for each kind of request."""


class Watching:
    """The state of a reply, without I/O."""

    def __init__(self, request: TurnRequest, attempts: Attempts) -> None:
        self._first = request
        self.attempts = attempts
        self.turns = _turns_of(request)
        self.deltas: deque[Delta] = deque()
        """New deltas, which the watcher hands out."""
        self.refused = False
        """True if the call's status says that the turn does not exist."""

    @property
    def request_id(self) -> str:
        """The request's id. Empty if the turn is only watched."""
        return "" if isinstance(self._first, orchestrator_pb2.WatchTurnRequest) else self._first.request_id

    @property
    def owned(self) -> bool:
        """True if this client began the turn, so that leaving the reply ends it."""
        return not isinstance(self._first, orchestrator_pb2.WatchTurnRequest)

    @property
    def ended(self) -> bool:
        """True if every turn has ended."""
        return all(turn.ended for turn in self.turns)

    @property
    def known(self) -> bool:
        """True if every turn can be watched and cancelled by its number."""
        return all(turn.known for turn in self.turns)

    def error(self) -> PeerError | None:
        """Return the error of the first turn that failed."""
        return next((turn.error for turn in self.turns if turn.error is not None), None)

    def request(self) -> TurnRequest:
        """Return the request of a new stream: the turn by its number, from the position reached.
        While that is unknown, and for several choices, it is the same request again."""
        for turn in self.turns:
            turn.begin_stream()
        if len(self.turns) == 1 and self.turns[0].known:
            turn = self.turns[0]
            return orchestrator_pb2.WatchTurnRequest(
                session_id=turn.result.session_id, turn=turn.result.turn, after_token_count=turn.token_count
            )
        request = type(self._first)()
        request.CopyFrom(self._first)  # type: ignore[arg-type]
        if isinstance(request, orchestrator_pb2.GenerateRequest):
            del request.after_token_counts[:]
            request.after_token_counts.extend(turn.token_count for turn in self.turns)
        return request

    def take_response(self, response: TurnResponse) -> None:
        """Take an event. StreamLostError if events before it are missing, PeerError if the turn
        is lost for good."""
        self.attempts.note_answer()
        index = response.choice_index if isinstance(response, orchestrator_pb2.GenerateResponse) else 0
        delta = self.turns[index].take_event(response.event)
        if delta is not None:
            self.deltas.append(replace(delta, choice_index=index) if index else delta)

    def delay_after(self, error: PeerError) -> float:
        """Return the seconds to wait before the next stream, after one that was lost. Raises the
        error if it is final."""
        try:
            return self.attempts.delay_after(error)
        except PeerError as final:
            late = final.code is Code.DEADLINE_EXCEEDED
            self.refused = not (late or (is_lost(final) and self.attempts.reached))
            raise

    def cancellations(self) -> list[orchestrator_pb2.CancelTurnRequest]:
        """Return the requests that cancel the turns that still run, as far as they are known."""
        return [
            orchestrator_pb2.CancelTurnRequest(session_id=turn.result.session_id, turn=turn.result.turn)
            for turn in self.turns
            if turn.known and not turn.ended
        ]


def _turns_of(request: TurnRequest) -> list[Turn]:
    if isinstance(request, orchestrator_pb2.GenerateRequest):
        return [Turn() for _ in range(max(1, request.choice_count))]
    if isinstance(request, orchestrator_pb2.SendMessageRequest):
        return [Turn(request.session_id)]
    return [Turn(request.session_id, request.turn, request.after_token_count)]
