"""The state of one turn, from the events received over any number of streams. No I/O."""

from __future__ import annotations

from slipstream.client.results import Delta, Result, TokenLogprobs
from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError, StreamLostError, error_of
from slipstream.v1 import turn_pb2

_ORIGINS = {
    number: name.removeprefix("TOKEN_ORIGIN_").lower() for name, number in turn_pb2.TokenOrigin.items() if number
}
"""Names of token origins. An origin that only a newer server knows has none."""


class Turn:
    """The events of a turn, each token and each character once, however often streams repeat
    them."""

    def __init__(self, session_id: str = "", turn: int = 0, after_token_count: int = 0) -> None:
        """Begin with an unknown turn (empty ``session_id``, ``turn`` 0) or a known one. The
        caller already has the tokens before ``after_token_count``."""
        self.result = Result(session_id=session_id, turn=turn)
        self.token_count = after_token_count
        """Number of tokens received: the position from which to watch on."""
        self.ended = False
        self.error: PeerError | None = None
        """The error of a turn that has ended and failed."""
        self._text_at = {after_token_count: 0}
        """Length of the text at each number of tokens: the place of the text of a stream that
        begins there."""
        self._text_position: int | None = None

    @property
    def known(self) -> bool:
        """True if the session and the turn's number are known, so that the turn can be watched
        and cancelled."""
        return bool(self.result.session_id and self.result.turn)

    def begin_stream(self) -> None:
        """Note that the next events are another stream's."""
        self._text_position = None

    def take_event(self, event: turn_pb2.TurnEvent) -> Delta | None:
        """Take an event and return what is new in it, if anything. StreamLostError if events
        before it are missing; PeerError if it is another turn's."""
        kind = event.WhichOneof("event")
        if kind == "started":
            self._start(event.turn, event.started)
        elif kind == "delta":
            return self._delta(event.delta)
        elif kind == "finished":
            reason = turn_pb2.FinishReason.Name(event.finished.finish_reason)
            self.result.finish_reason = reason.removeprefix("FINISH_REASON_")
            if event.finished.HasField("stop_string"):
                self.result.stop_string = event.finished.stop_string
            return self._record_end(event.finished)
        elif kind == "failed":
            self.error = error_of(event.failed.error)
            return self._record_end(event.failed)
        return None

    def _start(self, turn: int, started: turn_pb2.TurnStarted) -> None:
        if self.known and (self.result.session_id, self.result.turn) != (started.session_id, turn):
            raise PeerError(
                Code.ABORTED,
                Reason.TURN_LOST,
                "the server has lost the turn and begun another one: send the request again",
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
            logprobs=tuple(map(TokenLogprobs.from_message, message.logprobs[seen:])),
            prompt_logprobs=() if seen else tuple(map(TokenLogprobs.from_message, message.prompt_logprobs)),
            token_origins=tuple(_ORIGINS.get(origin, "") for origin in message.token_origins[seen:]),
            token_text_byte_counts=tuple(message.token_text_byte_counts[seen:]),
        )
        self._text_position = position + len(message.text)
        self.token_count += len(delta.token_ids)
        self.result.append_delta(delta)
        self._text_at[self.token_count] = len(self.result.text)
        return delta if delta.text or delta.token_ids else None

    def _record_end(self, end: turn_pb2.TurnFinished | turn_pb2.TurnFailed) -> Delta | None:
        self.ended = True
        self.result.record_end(end)
        if not end.text:
            return None
        delta = Delta(text=end.text, token_offset=self.token_count)
        self.result.append_delta(delta)
        return delta
