"""A row of log-probabilities that answers as servers do: the N likeliest tokens, and ids."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from slipstream.sampling.partial.decide import decide
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.sampling.row import Choice, Row
from slipstream.sampling.softmax import log_softmax


class AnsweringRow:
    """A whole row, ``logprobs`` ``[vocabulary]``, of which a server lists some.

    Among equal ones a server lists those that it likes: here the higher ids. ``limit`` is the most
    likeliest tokens that it lists. If it ``tells_best_id``, the likeliest of the ids asked for is
    told alone."""

    def __init__(
        self,
        logits: NDArray[np.float32],
        limit: int | None = None,
        takes_ids: bool = True,
        tells_best_id: bool = False,
    ) -> None:
        self.logprobs = log_softmax(logits.astype(np.float32))
        self._limit = len(logits) if limit is None else limit
        self._takes_ids = takes_ids
        self._tells_best_id = tells_best_id
        self._order = np.lexsort((-np.arange(len(logits)), -self.logprobs))
        self.requests: list[Wanted] = []

    def answer(self, wanted: Wanted) -> PartialRow:
        self.requests.append(wanted)
        top = self._order[: min(wanted.likeliest_count, self._limit)].tolist()
        ids = wanted.token_ids if self._takes_ids else ()
        if ids and self._tells_best_id:
            best = max(ids, key=lambda token: (self.logprobs[token], token))
            row = PartialRow.of(len(self.logprobs), self._pairs(top), self._pairs([best]))
            return row.capped(ids, float(self.logprobs[best]))
        return PartialRow.of(len(self.logprobs), self._pairs(top), self._pairs(ids))

    def decide(self, row: Row, wanted: Wanted, most_requests: int = 40) -> Choice | Wanted:
        """Ask until the row is decided, or ``most_requests`` times."""
        known = self.answer(wanted)
        while isinstance(found := decide(known, row), Wanted) and len(self.requests) < most_requests:
            if not self._tells_best_id:
                known = self.answer(found)
                continue
            new = tuple(token for token in found.token_ids if not known.knows(token))
            known = self.answer(Wanted(found.likeliest_count, new)).joined(known)
        return found

    def _pairs(self, tokens: object) -> list[tuple[int, float]]:
        listed = list(tokens)  # type: ignore[call-overload]
        return [(token, json.loads(json.dumps(float(self.logprobs[token])))) for token in listed]
