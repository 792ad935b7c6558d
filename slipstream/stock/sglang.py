"""SGLang behind the verifier, by its native HTTP API (``/generate``).

The rows after a hint of K tokens are one request. Its input is the text with the hint, and
``logprob_start_len`` is the place of the text's last token: one earlier than wanted, since the
first entry of the answer's ``input_*`` lists is None. SGLang keeps the distribution at which a
token came with that token, so entry i + 1 is the row before the hint's token i. The row after the
hint is that of one generated token, in the ``output_*`` lists.

SGLang reads its prefix cache up to ``logprob_start_len`` only. That costs a hint's tokens and one
more.

An entry is ``[log-probability, token id, text]``, with null for minus infinity. Requests are
greedy: SGLang divides the logits of sampled requests by their temperature before it takes
logarithms.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.partial.known import Pair, PartialRow, Wanted
from slipstream.stock.openai_http import EngineHttp, is_failure, readable, shown
from slipstream.stock.protocol import Ask, EngineLostError, EngineRefusedError, StockFacts, StockRow
from slipstream.stock.token_probe import TokenProbe

_GENERATE = "/generate"
_SPARE_TOKENS = 7
"""Tokens of its context that SGLang keeps to itself: it takes prompts of fewer than
``max_req_input_len`` tokens, six less than the context (its scheduler)."""
_LONGEST_STREAM = 64
"""Tokens of one stream: each of its events repeats the log-probabilities of those before."""

_MOST_IDS = 4096
"""Ids of one request: those of all rows of a hint. SGLang names no limit."""


class SGLang:
    """A running SGLang server."""

    def __init__(self, http: EngineHttp, *, model: str, vocabulary_size: int, probe: TokenProbe) -> None:
        """``model`` is the directory or hub id that the server has to serve."""
        self._http = http
        self._name = model
        self._vocabulary_size = vocabulary_size
        self._probe = probe

    async def connect(self) -> StockFacts:
        model = await self._first_of("/get_model_info", "/model_info")
        server = await self._first_of("/get_server_info", "/server_info")
        served = str(model.get("model_path", ""))
        if not model.get("is_generation", True):
            raise UnsupportedModelError(f"SGLang serves {served}, which generates no text, and --model is {self._name}")
        lacks = await self._probe.compare(self._http, "SGLang", served, self._name)
        takes_ids = await self._try_out()
        if not takes_ids:
            lacks.append("token_ids_logprob")
        if server.get("disable_radix_cache"):
            lacks.append("the radix cache (--disable-radix-cache: each step reads the whole text)")
        if not server.get("enable_deterministic_inference"):
            lacks.append("--enable-deterministic-inference (equal bits in a batch)")
        version = str(server.get("version", "of an unknown version"))
        return StockFacts(
            f"SGLang {version}",
            served,
            await self._context_length(server),
            self._vocabulary_size,
            _MOST_IDS if takes_ids else 0,
            lacks=tuple(lacks),
        )

    async def score(self, ask: Ask) -> list[StockRow]:
        tokens = [*ask.tokens, *ask.hint]
        start = len(ask.tokens) - 1 if ask.hint else -1
        answer = await self._http.json(_GENERATE, _body(tokens, 1, start, ask.wanted))
        with readable("SGLang's answer"):
            meta = _meta(answer)
            rows = self._hinted_rows(meta, tokens[start:], ask.wanted) if ask.hint else []
            return [*rows, self._output_row(meta, 0, ask.wanted)]

    async def score_tail(self, tokens: Sequence[int], count: int, likeliest: int) -> list[PartialRow]:
        start = len(tokens) - count - 1
        answer = await self._http.json(_GENERATE, _body(tokens, 1, start, Wanted(likeliest)))
        with readable("SGLang's answer"):
            meta = _meta(answer)
            own = [[entry] for entry in meta["input_token_logprobs"][1:]]
            return [self._row(top, pair) for top, pair in zip(_inputs(meta, tokens[start:]), own, strict=True)]

    async def continue_greedily(self, tokens: Sequence[int], count: int, likeliest: int) -> AsyncGenerator[StockRow]:
        wanted = Wanted(likeliest)
        body = _body(tokens, min(count, _LONGEST_STREAM), -1, wanted) | {"stream": True}
        seen = 0
        async with aclosing(self._http.events(_GENERATE, body)) as events:
            async for data in events:
                rows = self._streamed(data, seen, wanted)
                seen += len(rows)
                for row in rows:
                    yield row

    def lost_count(self) -> int:
        return self._http.lost_count()

    async def close(self) -> None:
        await self._http.close()

    def _streamed(self, data: str, seen: int, wanted: Wanted) -> list[StockRow]:
        """Return the rows of an event after ``seen`` ones. A server repeats all rows in each event,
        unless it was told to stream increments."""
        with readable("SGLang's stream"):
            meta = _meta(json.loads(data))
            listed = len(meta["output_token_logprobs"])
            new = int(meta["completion_tokens"]) - seen
            if new > listed:
                raise ValueError(f"{listed} rows came of {new} tokens")
            return [self._output_row(meta, at, wanted) for at in range(listed - new, listed)]

    def _hinted_rows(self, meta: Mapping[str, Any], tokens: Sequence[int], wanted: Wanted) -> list[StockRow]:
        top = _inputs(meta, tokens)
        others = meta["input_token_ids_logprobs"][1:] if wanted.token_ids else [()] * len(top)
        rows = [self._row(listed, asked) for listed, asked in zip(top, others, strict=True)]
        return [StockRow(_best(row), row) for row in rows]

    def _output_row(self, meta: Mapping[str, Any], at: int, wanted: Wanted) -> StockRow:
        token = int(meta["output_token_logprobs"][at][1])
        others = meta["output_token_ids_logprobs"][at] if wanted.token_ids else ()
        return StockRow(token, self._row(meta["output_top_logprobs"][at], others))

    def _row(self, likeliest: Any, others: Any) -> PartialRow:
        return PartialRow.of(self._vocabulary_size, _listed(likeliest), _listed(others))

    async def _try_out(self) -> bool:
        """Check that answers are as documented. Returns whether ids can be asked for."""
        try:
            await self.score(Ask([0], (0,), Wanted(2)))
        except EngineRefusedError as error:
            raise UnsupportedModelError(f"SGLang cannot be used: {error}") from error
        try:
            rows = await self.score(Ask([0], (0,), Wanted(1, (0, 1))))
        except EngineRefusedError:
            return False
        return all(row.known.knows(token) for row in rows for token in (0, 1))

    async def _first_of(self, path: str, newer: str) -> Mapping[str, Any]:
        """Return the answer at ``path``, or at the name that newer servers give it."""
        try:
            answer = await self._http.json(path)
        except EngineRefusedError:
            answer = await self._http.json(newer)
        return answer

    async def _context_length(self, server: Mapping[str, Any]) -> int:
        if isinstance(length := server.get("max_req_input_len"), int):
            return length - 1  # it takes prompts of fewer tokens
        if not isinstance(length := server.get("context_length"), int):
            models = await self._http.json("/v1/models")
            with readable("SGLang's list of models"):
                length = next((each.get("max_model_len") for each in models["data"]), None)
        if not isinstance(length, int):
            raise UnsupportedModelError("SGLang does not tell its context's length: start it with --context-length")
        return length - _SPARE_TOKENS


def _body(tokens: Sequence[int], count: int, start: int, wanted: Wanted) -> dict[str, Any]:
    """Return a request. It states every sampling field: else SGLang takes the model's own."""
    body = {
        "input_ids": [*tokens],
        "sampling_params": {
            "max_new_tokens": count,
            "temperature": 0,
            "top_p": 1,
            "top_k": -1,
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "ignore_eos": True,
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": max(1, wanted.likeliest_count),
        "stream": False,
    }
    if wanted.token_ids:
        body["token_ids_logprob"] = [*wanted.token_ids]
    return body


def _meta(answer: Any) -> Mapping[str, Any]:
    """Return an answer's meta_info. EngineLostError or EngineRefusedError if it says that the
    request failed."""
    if (said := answer.get("error")) is not None:
        raise EngineRefusedError(f"SGLang ends its answer with: {shown(str(said))}")
    meta: Mapping[str, Any] = answer["meta_info"]
    reason = meta.get("finish_reason") or {}
    if reason.get("type") == "abort":
        error = EngineLostError if is_failure(reason.get("status_code") or 0) else EngineRefusedError
        raise error(f"SGLang has aborted a request: {shown(str(reason.get('message')))}")
    return meta


def _inputs(meta: Mapping[str, Any], tokens: Sequence[int]) -> Sequence[Any]:
    """Return the likeliest tokens where each of ``tokens`` came, but for the first one. ValueError
    if the answer is of other tokens."""
    told = [entry[1] for entry in meta["input_token_logprobs"]]
    top: Sequence[Any] = meta["input_top_logprobs"]
    if told != [*tokens] or len(top) != len(told):
        raise ValueError(f"the input lists are of {len(top)} entries and the tokens {told}, asked were {[*tokens]}")
    return top[1:]


def _listed(entries: Any) -> list[Pair]:
    return [_pair(entry) for entry in entries]


def _pair(entry: Sequence[Any]) -> Pair:
    return int(entry[1]), -math.inf if entry[0] is None else float(entry[0])


def _best(row: PartialRow) -> int:
    return int(row.token_ids[row.logprobs.argmax()])
