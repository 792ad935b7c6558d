"""Hints from the caller's prediction of the answer."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.peers.run_parts import Part
from orchestrator.proposers.proposer import HintSink, Proposer
from orchestrator.rounds.terms import Prediction, RoundTerms
from slipstream.ngrams import LONGEST_AGREEMENT, NgramIndex
from slipstream.wire.v1 import hint_pb2

_LENGTH = 64
"""Tokens of a hint: the most that a verifier takes."""

_STRIDE = 32
"""Tokens of a hint that the one before does not have. Fewer: a step near the end of a hint has more
tokens, but there are more hints, of which a verifier keeps few."""

_AHEAD = 128
"""Tokens after the committed ones that the verifier has hints for. More: a long round trip costs
fewer steps, but the hints of a draft find less room."""

_ODDS = 0.95
"""Stated odds of a token after right ones. The verifier learns for each caller what they are
worth."""

_SURVIVALS = [_ODDS**count for count in range(1, _LENGTH + 1)]


class PredictionFollower:
    """Follows one answer through a prediction. Pure."""

    def __init__(self, predicted: Sequence[int]) -> None:
        self.place: int | None = 0
        """The place in the prediction where the answer continues; None if it has left it."""
        self._predicted = predicted
        self._index: NgramIndex | None = None
        self._last: list[int] = []
        self._hinted = 0

    def take(self, tokens: Sequence[int]) -> None:
        """Take in the answer's next tokens. If they are not the predicted ones, the answer's last
        tokens are looked up in the prediction."""
        if not tokens:
            return
        self._last = [*self._last, *tokens][-LONGEST_AGREEMENT:]
        if self.place is not None:
            end = self.place + len(tokens)
            if list(self._predicted[self.place : end]) == list(tokens):
                self.place = end
                return
        if self._index is None:  # most answers that a caller predicts well need none
            self._index = NgramIndex()
            self._index.follow(self._predicted)
        found = self._index.locate(self._predicted, self._last)
        self.place = None
        if found is not None:
            self.place = self._hinted = found[0]

    def next_hint(self) -> tuple[int, Sequence[int]] | None:
        """Return the tokens of the next hint, and how far after the answer's last token they begin;
        None if there are enough hints already."""
        if self.place is None or self.place == len(self._predicted):
            return None
        if self._hinted >= min(self.place + _AHEAD, len(self._predicted)):
            return None
        start = max(self.place, self._hinted + _STRIDE - _LENGTH)
        tokens = self._predicted[start : start + _LENGTH]
        self._hinted = start + len(tokens)
        return start - self.place, tokens


class _PredictedRun:
    """A run with a prediction."""

    def __init__(self, prediction: Prediction, until_length: int, sink: HintSink) -> None:
        self._source_id = prediction.source_id
        self._follower = PredictionFollower(prediction.tokens)
        self._until_length = until_length
        self._sink = sink

    def take(self, length: int, tokens: Sequence[int]) -> None:
        """Take in the answer's next tokens, with which ``length`` tokens are committed, and send
        hints for what comes after them."""
        self._follower.take(tokens)
        while (found := self._follower.next_hint()) is not None:
            ahead, predicted = found
            start = length + ahead
            if start >= self._until_length:
                return
            predicted = predicted[: self._until_length - start]
            self._sink.hint(
                hint_pb2.Hint(
                    start=start,
                    tokens=predicted,
                    survivals=_SURVIVALS[: len(predicted)],
                    source=hint_pb2.HINT_SOURCE_PREDICTION,
                    source_id=self._source_id,
                    length_seen=length,
                )
            )


class PredictionProposer(Proposer):
    """Sends hints from a turn's prediction, if it has one."""

    def __init__(self) -> None:
        self._run: _PredictedRun | None = None

    def begin(self, tokens: Sequence[int], until_length: int, terms: RoundTerms, sink: HintSink) -> None:
        """Send the first hints. The answer so far is part of ``tokens``."""
        if terms.prediction is not None:
            self._run = _PredictedRun(terms.prediction, until_length, sink)
            self._run.take(len(tokens), tokens[terms.rule.first_generated_position :])

    def committed(self, position: int, part: Part) -> None:
        """Send the hints that are missing after these tokens."""
        if self._run is not None:
            self._run.take(position + len(part.tokens), part.tokens)

    def stop(self) -> None:
        """Forget the prediction."""
        self._run = None
