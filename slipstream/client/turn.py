"""One turn as far as its events have been received, over however many streams. No I/O."""

from __future__ import annotations

from slipstream.client.results import Delta, Result, TokenLogprobs
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError, StreamLostError, error_of
from slipstream.v1 import turn_pb2

_ORIGINS = {
    number: name.removeprefix("TOKEN_ORIGIN_").lower() for name, number in turn_pb2.TokenOrigin.items() if number
}
"""What one is called here; one that a newer server may send is not said."""


class Turn:
    """Takes events in and tells what of them is new. Every token and every character comes out
    once, whatever the streams repeat."""

    def __init__(self, session_id: str = "", turn: int = 0, after_token_count: int = 0) -> None:
        """Unknown are an empty ``session_id`` and turn 0. Tokens before ``after_token_count`` are
        somebody else's."""
        self.result = Result(session_id=session_id, turn=turn)
        self.token_count = after_token_count
        """Tokens received: the position from which to watch on."""
        self.ended = False
        self.error: PeerError | None = None
        """Why the turn failed, once it has ended so."""
        self._text_at = {after_token_count: 0}
        """Length of the text when so many tokens had come: where the text of a stream that begins
        there belongs."""
        self._text_position: int | None = None

    @property
    def known(self) -> bool:
        """Whether session and number are known, so that it can be watched and cancelled."""
        return bool(self.result.session_id and self.result.turn)

    def begin_stream(self) -> None:
        """Another stream's events follow."""
        self._text_position = None

    def take_event(self, event: turn_pb2.TurnEvent) -> Delta | None:
        """What the event brings that is new, if anything. StreamLostError if events before it are
        missing; PeerError if it is another turn's."""
        kind = event.WhichOneof("event")
        if kind == "started":
            self._start(event.turn, event.started)
        elif kind == "delta":
            return self._delta(event.delta)
        elif kind == "finished":
            reason = turn_pb2.FinishReason.Name(event.finished.finish_reason)
            self.result.finish_reason = reason.removeprefix("FINISH_REASON_")
            return self._end(event.finished)
        elif kind == "failed":
            self.error = error_of(event.failed.error)
            return self._end(event.failed)
        return None

    def _start(self, turn: int, started: turn_pb2.TurnStarted) -> None:
        if self.known and (self.result.session_id, self.result.turn) != (started.session_id, turn):
            raise PeerError(
                Code.ABORTED, Reason.TURN_LOST, "the server has lost the turn and began another one: ask again"
            )
        self.result.session_id, self.result.turn = started.session_id, turn
        self.result.seed = started.seed
        self.result.prompt_token_count = started.prompt_token_count

    def _delta(self, message: turn_pb2.TurnDelta) -> Delta | None:
        offset = message.token_offset
        position = self._text_at.get(offset) if self._text_position is None else self._text_position
        if offset > self.token_count or position is None:
            raise StreamLostError(f"tokens {self.token_count} to {offset} of the turn are missing")
        seen = self.token_count - offset
        delta = Delta(
            text=message.text[max(0, len(self.result.text) - position) :],
            token_ids=tuple(message.token_ids[seen:]),
            token_offset=self.token_count,
            logprobs=tuple(map(TokenLogprobs.of, message.logprobs[seen:])),
            prompt_logprobs=() if seen else tuple(map(TokenLogprobs.of, message.prompt_logprobs)),
            token_origins=tuple(_ORIGINS.get(origin, "") for origin in message.token_origins[seen:]),
            token_text_byte_counts=tuple(message.token_text_byte_counts[seen:]),
        )
        self._text_position = position + len(message.text)
        self.token_count += len(delta.token_ids)
        self.result.add(delta)
        self._text_at[self.token_count] = len(self.result.text)
        return delta if delta.text or delta.token_ids else None

    def _end(self, end: turn_pb2.TurnFinished | turn_pb2.TurnFailed) -> Delta | None:
        self.ended = True
        self.result.account(end)
        if not end.text:
            return None
        delta = Delta(text=end.text, token_offset=self.token_count)
        self.result.add(delta)
        return delta
