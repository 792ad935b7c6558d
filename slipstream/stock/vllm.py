"""vLLM behind the verifier, by the HTTP API of its OpenAI-compatible server.

The rows after a hint of K tokens are one request with K + 1 prompts of token ids, each with one
token to choose. vLLM's prefix cache makes each prompt a block and a few tokens.
``prompt_logprobs`` would give all rows with one prompt, but a request with them does not read the
prefix cache: it computes the whole prompt at each step.

Ids are asked for with ``allowed_token_ids``: vLLM chooses the likeliest of them, tells its
log-probability in the whole row, and the likeliest tokens of the whole row beside it. Its
``logprob_token_ids`` would tell all, but it takes the likeliest tokens from all other requests of
the same step: each of those lists its own token, and token 0 at minus infinity.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.stock.openai_http import EngineHttp, is_failure, readable, shown
from slipstream.stock.protocol import Ask, EngineLostError, EngineRefusedError, StockFacts, StockRow
from slipstream.stock.token_probe import TokenProbe
from slipstream.stock.vllm_models import find_model

log = logging.getLogger(__name__)

_MOST_IDS = 128
"""Ids of one question. More than these come down sooner by more of the likeliest tokens."""

_LEAST_LOGPROB = -9999.0
"""vLLM writes minus infinity as this number."""

_NO_PREFIXES = 'enable_prefix_caching="False"'
"""A label of vLLM's metric of its cache."""

_MOST_MASS = 1.01
"""Most that the probabilities of a row may sum to, by rounding."""

_MARK = "token_id:"
_ALLOWED = re.compile(r"max allowed: (\d+)")
_COMPLETIONS = "/v1/completions"


class Vllm:
    """A running vLLM server."""

    def __init__(
        self, http: EngineHttp, *, model: str, served_as: str = "", vocabulary_size: int, probe: TokenProbe
    ) -> None:
        """``model`` is the directory or hub id that the server has to serve, and ``served_as`` the
        name that it gives it; empty: any."""
        self._http = http
        self._name = model
        self._served_as = served_as
        self._vocabulary_size = vocabulary_size
        self._probe = probe
        self._served = ""

    async def connect(self) -> StockFacts:
        version = str((await self._http.json("/version")).get("version", "of an unknown version"))
        answer = await self._http.json("/v1/models")
        with readable("vLLM's list of models"):
            self._served, length = find_model(answer["data"], self._name, self._served_as)
        lacks = await self._probe.compare(self._http, "vLLM", self._served, self._name)
        most, takes_ids = await self._limits()
        if not takes_ids:
            lacks.append("allowed_token_ids")
        if not await self._reads_prefixes():
            lacks.append(
                "a prefix cache (it reads the whole prompt for each row: leave --no-enable-prefix-caching out)"
            )
        if most < self._vocabulary_size:
            lacks.append(f"--max-logprobs -1 (it lists {most})")
        return StockFacts(
            f"vLLM {version}",
            self._served,
            length - 1,  # of which a prompt may have all but one
            most,
            _MOST_IDS if takes_ids else 0,
            tells_best_id=True,
            lacks=tuple(lacks),
        )

    async def score(self, ask: Ask) -> list[StockRow]:
        return await self._score(ask, max(1, ask.wanted.likeliest_count))

    async def _score(self, ask: Ask, least: int) -> list[StockRow]:
        """Return the rows of a question, each with at least so many of the likeliest tokens."""
        count = len(ask.hint) + 1
        answer = await self._http.json(_COMPLETIONS, self._body(ask.tokens, 1, ask.wanted, ask.hint))
        with readable("vLLM's answer"):
            choices = {choice["index"]: choice for choice in answer["choices"]}
            if choices.keys() != {*range(count)}:
                raise EngineRefusedError(f"vLLM has answered {len(choices)} of {count} prompts")
            return [self._row(choices[at]["logprobs"], 0, ask.wanted, least) for at in range(count)]

    async def score_tail(self, tokens: Sequence[int], count: int, likeliest: int) -> list[PartialRow]:
        body = self._body(tokens, 1, Wanted(1), prompt_logprobs=likeliest)
        answer = await self._http.json(_COMPLETIONS, body)
        with readable("vLLM's prompt_logprobs"):
            rows = answer["choices"][0]["prompt_logprobs"][len(tokens) - count :]
            return [self._scored(row, token) for row, token in zip(rows, tokens[-count:], strict=True)]

    async def continue_greedily(self, tokens: Sequence[int], count: int, likeliest: int) -> AsyncGenerator[StockRow]:
        wanted = Wanted(likeliest)
        body = self._body(tokens, count, wanted, stream=True, stream_interval=1)
        async with aclosing(self._http.events(_COMPLETIONS, body)) as events:
            async for data in events:
                for row in self._streamed(data, wanted):
                    yield row

    def lost_count(self) -> int:
        return self._http.lost_count()

    async def close(self) -> None:
        await self._http.close()

    def _body(
        self, tokens: Sequence[int], count: int, wanted: Wanted, hint: Sequence[int] = (), **more: object
    ) -> bytes:
        """Return a request with the prompts after ``tokens`` and after each token of ``hint``. It
        states every sampling field: else vLLM takes the model's own."""
        body: dict[str, object] = {
            "model": self._served,
            "max_tokens": count,
            "logprobs": max(1, wanted.likeliest_count),
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
            "temperature": 0,
            "top_p": 1,
            "top_k": 0,
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "ignore_eos": True,
            **more,
        }
        if wanted.token_ids:
            body["allowed_token_ids"] = [*wanted.token_ids]
        return f'{{"prompt": {_prompts(tokens, hint)}, {json.dumps(body)[1:]}'.encode()

    def _streamed(self, data: str, wanted: Wanted) -> list[StockRow]:
        with readable("vLLM's stream"):
            event = json.loads(data)
            if (error := event.get("error")) is not None:
                raise _ended_by(error)
            logprobs = event["choices"][0]["logprobs"] if event["choices"] else None
            return (
                []
                if logprobs is None
                else [self._row(logprobs, at, wanted, wanted.likeliest_count) for at in range(len(logprobs["tokens"]))]
            )

    def _row(self, logprobs: Any, at: int, wanted: Wanted, least: int) -> StockRow:
        """Return a row, which has to list ``least`` of the likeliest tokens."""
        chosen, own = _token_of(logprobs["tokens"][at]), _finite(logprobs["token_logprobs"][at])
        top = {_token_of(name): _finite(value) for name, value in logprobs["top_logprobs"][at].items()}
        if wanted.token_ids and len(top) > max(1, wanted.likeliest_count):
            top.pop(chosen, None)  # vLLM adds it to the likeliest ones
        row = PartialRow.of(self._vocabulary_size, top.items(), [(chosen, own)])
        if len(top) < least or (row.bound == -np.inf and not row.is_complete):
            raise EngineLostError(
                f"vLLM has not listed the {least} likeliest tokens, as where another client asks it for "
                "logprob_token_ids"
            )
        if not wanted.token_ids:
            return StockRow(chosen, row)
        return StockRow(int(row.token_ids[row.logprobs.argmax()]), row.capped(wanted.token_ids, own))

    def _scored(self, row: Mapping[str, Any], token: int) -> PartialRow:
        listed = [(int(name), _finite(value["logprob"])) for name, value in row.items()]
        return PartialRow.of(self._vocabulary_size, listed, [(token, dict(listed)[token])])

    async def _reads_prefixes(self) -> bool:
        """Return whether the server has its prefix cache on, as far as its metrics tell."""
        try:
            return _NO_PREFIXES not in await self._http.text("/metrics")
        except EngineRefusedError:
            return True

    async def _limits(self) -> tuple[int, bool]:
        """Return how many likeliest tokens a row can have, and whether ids can be asked for."""
        most = self._vocabulary_size
        try:
            (row,) = await self._score(Ask([0], (), Wanted(most)), 1)
        except EngineRefusedError as error:
            said = _ALLOWED.search(str(error))
            if said is None:
                raise UnsupportedModelError(f"vLLM cannot be used: {error}") from error
            most = int(said[1])
        else:
            most = row.known.likeliest_count
            _check_mass(row.known)
        if most < 1:
            raise UnsupportedModelError("vLLM lists no log-probabilities: start it with --max-logprobs -1")
        try:
            rows = await self.score(Ask([0], (), Wanted(1, (0, 1))))
        except EngineRefusedError:
            return most, False
        return most, rows[0].known.knows(0) or rows[0].known.knows(1)


def _ended_by(error: Any) -> Exception:
    """Return the error of a stream that its server ends in the middle, as it does if its engine
    dies."""
    message = f"vLLM ends its answer with: {shown(str(error))}"
    code = error.get("code") if isinstance(error, dict) else None
    return EngineLostError(message) if isinstance(code, int) and is_failure(code) else EngineRefusedError(message)


def _check_mass(row: PartialRow) -> None:
    """Check that a row is one of log-probabilities. UnsupportedModelError if it is not."""
    mass = float(np.exp(row.logprobs.astype(np.float64)).sum())
    if mass > _MOST_MASS or (row.is_complete and mass < 1 / _MOST_MASS):
        raise UnsupportedModelError(
            f"vLLM's numbers are no log-probabilities (their probabilities sum to {mass:.3g}): start it with "
            "--logprobs-mode raw_logprobs, which is its default"
        )


def _prompts(tokens: Sequence[int], hint: Sequence[int]) -> str:
    """Return the prompts as JSON. The tokens that they share may be many, and are encoded once."""
    shared = json.dumps([*tokens])[:-1]
    return (
        f"[{', '.join(shared + ''.join(f', {token}' for token in hint[:end]) + ']' for end in range(len(hint) + 1))}]"
    )


def _token_of(name: str) -> int:
    if not name.startswith(_MARK):
        raise ValueError(f"{name!r} is not a token id")
    return int(name.removeprefix(_MARK))


def _finite(value: float) -> float:
    return -math.inf if value <= _LEAST_LOGPROB else value
