"""Choices from what a stock engine tells of rows, asking for more where it does not decide."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slipstream.errors import FieldViolation
from slipstream.sampling.partial.decide import decide, logprobs_from
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.sampling.partial.wanted import SAMPLED_COUNT, first_request, joined
from slipstream.sampling.row import Choice, Row
from slipstream.stock.protocol import (
    Ask,
    EngineRefusedError,
    SamplingUnsupportedError,
    StockEngine,
    StockFacts,
    StockRow,
)

_MOST_QUESTIONS = 24
"""Questions about one row, of an engine that lists few tokens."""
_MOST_ABOUT_IDS = 6
"""Questions after which an engine that lists more of the likeliest tokens is asked for those."""
_GROUP = 32
"""Ids of one question to an engine that tells the best alone. Of more ids several questions at once
tell several."""
_FIRST_COUNT, _LEAST_GROWTH = 20, 8
"""From one question to the next the number of likeliest tokens grows at least so, to the whole
vocabulary."""


class Chooser:
    """Chooses tokens of one model from a stock engine's rows."""

    def __init__(self, engine: StockEngine, facts: StockFacts, vocabulary_size: int) -> None:
        self._engine = engine
        self._facts = facts
        self._vocabulary_size = vocabulary_size

    def first_wanted(self, rows: Sequence[Row], top_count: int | None) -> Wanted:
        """Return what to ask for at first, for all rows. ``top_count`` likeliest tokens are told to
        the caller; None: no log-probabilities are told. SamplingUnsupportedError if the engine
        lists fewer."""
        if (top_count or 0) > self._facts.most_likeliest:
            limit = f"must be at most {self._facts.most_likeliest} with this target: its engine lists no more"
            raise SamplingUnsupportedError([FieldViolation("top_logprob_count", limit)])
        most_ids = self._facts.most_ids
        asked = joined([first_request(row, self._vocabulary_size, top_count or 0, most_ids) for row in rows])
        if self._facts.tells_best_id and asked.token_ids:  # the second best id is mostly one of these
            asked = replace(asked, likeliest_count=max(asked.likeliest_count, SAMPLED_COUNT))
        return self._limited(asked)

    async def choose(self, found: StockRow, row: Row, tokens: Sequence[int], top_count: int | None) -> Choice:
        """Return what ``row`` chooses after ``tokens``. Asks the engine for more where ``found``
        does not decide it. EngineRefusedError if the engine cannot tell enough."""
        if row.rule.temperature == 0 and not row.is_processed and (lead := _lead(found)) > 0:
            choice = Choice(found.token, lead)
            known = found.known
        else:
            choice, known = await self._decided(found.known, row, tokens)
        if top_count is not None and choice.fault is None and choice.token >= 0:
            choice.logprobs = logprobs_from(known, choice.token, top_count)
        return choice

    async def _decided(self, known: PartialRow, row: Row, tokens: Sequence[int]) -> tuple[Choice, PartialRow]:
        for number in range(1, _MOST_QUESTIONS + 1):
            outcome = decide(known, row)
            if isinstance(outcome, Choice):
                return outcome, known
            least = min(_FIRST_COUNT * _LEAST_GROWTH**number, self._vocabulary_size) if number > 1 else 0
            outcome = replace(outcome, likeliest_count=max(outcome.likeliest_count, least))
            answers = await asyncio.gather(
                *[self._engine.score(Ask(tokens, (), wanted)) for wanted in self._next_wanted(outcome, known, number)]
            )
            for (more,) in answers:
                known = self._joined(known, more.known)
        raise EngineRefusedError(
            f"{self._facts.engine} lists {self._facts.most_likeliest} log-probabilities of a token, and more are needed to "
            "choose: start it with a higher limit (vLLM: --max-logprobs -1)"
        )

    def _joined(self, known: PartialRow, more: PartialRow) -> PartialRow:
        """Return what two answers tell together. An engine that lists all ids was asked for all of
        them again, so that its last answer decides alone."""
        if not self._facts.tells_best_id:
            return more
        return more.joined(known) if more.likeliest_count > known.likeliest_count else known.joined(more)

    def _next_wanted(self, wanted: Wanted, known: PartialRow, number: int) -> list[Wanted]:
        """Return what question ``number`` asks for. An engine that tells the best id is asked for
        ids alone, if they are few or it does not list as many likeliest tokens."""
        if not self._facts.tells_best_id:
            return [self._limited(wanted)]
        most = self._facts.most_ids
        ids = tuple(token for token in wanted.token_ids if not known.knows(token))
        is_listable = wanted.likeliest_count <= self._facts.most_likeliest
        are_few = len(ids) <= most and number <= _MOST_ABOUT_IDS
        if ids and most and (are_few or not is_listable):
            return [Wanted(1, ids[start : start + _GROUP]) for start in range(0, len(ids), _GROUP)]
        return [self._limited(Wanted(wanted.likeliest_count, ids))]

    def _limited(self, wanted: Wanted) -> Wanted:
        return Wanted(min(wanted.likeliest_count, self._facts.most_likeliest), wanted.token_ids[: self._facts.most_ids])


def _lead(found: StockRow) -> float:
    """Return the lead of the engine's token over the next one that is listed; 0 if it is not the
    likeliest one."""
    logprobs = found.known.logprobs
    if not len(logprobs) or found.known.token_ids[logprobs.argmax()] != found.token:
        return 0.0
    second, first = np.sort(logprobs)[-2:].tolist() if len(logprobs) > 1 else (-math.inf, 0.0)
    return float(first - second)
