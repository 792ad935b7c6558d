"""vLLM behind the verifier, by the HTTP API of its OpenAI-compatible server.

The rows after a hint of K tokens are one request with K + 1 prompts of token ids, each with one
token to choose. vLLM's prefix cache makes each prompt a block and a few tokens.
``prompt_logprobs`` would give all rows with one prompt, but a request with them does not read the
prefix cache: it computes the whole prompt at each step.

``logprob_token_ids`` replaces the likeliest tokens in an answer, so ids come apart.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.partial.known import PartialRow, Wanted
from slipstream.stock.openai_http import EngineHttp
from slipstream.stock.protocol import Ask, EngineRefusedError, StockFacts, StockRow
from slipstream.stock.token_probe import TokenProbe

log = logging.getLogger(__name__)

_MOST_IDS = 128
"""vLLM's MAX_LOGPROB_TOKEN_IDS, which no flag raises."""

_LEAST_LOGPROB = -9999.0
"""vLLM writes minus infinity as this number."""

_NO_PREFIXES = 'enable_prefix_caching="False"'
"""A label of vLLM's metric of its cache."""

_MARK = "token_id:"
_ALLOWED = re.compile(r"max allowed: (\d+)")
_COMPLETIONS = "/v1/completions"


class Vllm:
    """A running vLLM server."""

    def __init__(self, http: EngineHttp, *, model: str, vocabulary_size: int, probe: TokenProbe) -> None:
        """``model`` is the directory or hub id that the server has to serve."""
        self._http = http
        self._name = model
        self._vocabulary_size = vocabulary_size
        self._probe = probe
        self._served = ""

    async def connect(self) -> StockFacts:
        version = str((await self._http.json("/version")).get("version", "of an unknown version"))
        models = (await self._http.json("/v1/models")).get("data", [])
        found = next((each for each in models if self._name in (each.get("id"), each.get("root"))), None)
        if found is None and len(models) == 1:
            found = models[0]
        if found is None or not isinstance(found.get("max_model_len"), int):
            names = ", ".join(str(each.get("id")) for each in models)
            raise UnsupportedModelError(f"vLLM serves {names or 'no model'}, and --model is {self._name}")
        self._served = str(found["id"])
        lacks = await self._probe.compare(self._http, "vLLM", self._served, self._name)
        most, takes_ids = await self._limits()
        if not takes_ids:
            lacks.append("logprob_token_ids")
        if not await self._reads_prefixes():
            lacks.append(
                "a prefix cache (it reads the whole prompt for each row: leave --no-enable-prefix-caching out)"
            )
        if most < self._vocabulary_size:
            lacks.append(f"--max-logprobs -1 (it lists {most})")
        return StockFacts(
            f"vLLM {version}",
            self._served,
            found["max_model_len"] - 1,  # of which a prompt may have all but one
            most,
            _MOST_IDS if takes_ids else 0,
            ids_come_apart=True,
            lacks=tuple(lacks),
        )

    async def score(self, ask: Ask) -> list[StockRow]:
        prompts = [[*ask.tokens, *ask.hint[:count]] for count in range(len(ask.hint) + 1)]
        body = self._body(prompts, 1, ask.wanted)
        answer = await self._http.json(_COMPLETIONS, body)
        try:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            rows = [self._row(choice["logprobs"], 0, ask.wanted) for choice in choices]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise EngineRefusedError(f"vLLM's answer cannot be read: {error!r}") from error
        if len(rows) != len(prompts):
            raise EngineRefusedError(f"vLLM has answered {len(rows)} of {len(prompts)} prompts")
        return rows

    async def score_tail(self, tokens: Sequence[int], count: int, likeliest: int) -> list[PartialRow]:
        body = self._body([list(tokens)], 1, Wanted(1)) | {"prompt_logprobs": likeliest}
        answer = await self._http.json(_COMPLETIONS, body)
        try:
            rows = answer["choices"][0]["prompt_logprobs"][len(tokens) - count :]
            return [self._scored(row, token) for row, token in zip(rows, tokens[-count:], strict=True)]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise EngineRefusedError(f"vLLM's prompt_logprobs cannot be read: {error!r}") from error

    async def continue_greedily(self, tokens: Sequence[int], count: int, likeliest: int) -> AsyncGenerator[StockRow]:
        wanted = Wanted(likeliest)
        body = self._body([list(tokens)], count, wanted) | {"stream": True, "stream_interval": 1}
        async with aclosing(self._http.events(_COMPLETIONS, body)) as events:
            async for data in events:
                for row in self._streamed(data, wanted):
                    yield row

    async def close(self) -> None:
        await self._http.close()

    def _body(self, prompts: list[list[int]], count: int, wanted: Wanted) -> dict[str, Any]:
        """Return a request. It states every sampling field: else vLLM takes the model's own."""
        body = {
            "model": self._served,
            "prompt": prompts,
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
        }
        if _are_ids_wanted(wanted):
            body["logprob_token_ids"] = [*wanted.token_ids]
        return body

    def _streamed(self, data: str, wanted: Wanted) -> list[StockRow]:
        try:
            event = json.loads(data)
            if "error" in event:
                raise EngineRefusedError(f"vLLM ends its answer with: {event['error']}")
            logprobs = event["choices"][0]["logprobs"] if event["choices"] else None
            return (
                [] if logprobs is None else [self._row(logprobs, at, wanted) for at in range(len(logprobs["tokens"]))]
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise EngineRefusedError(f"vLLM's stream cannot be read: {error!r}") from error

    def _row(self, logprobs: Any, at: int, wanted: Wanted) -> StockRow:
        token = _token_of(logprobs["tokens"][at])
        listed = [(_token_of(name), _finite(value)) for name, value in logprobs["top_logprobs"][at].items()]
        if not _are_ids_wanted(wanted):
            return StockRow(token, PartialRow.of(self._vocabulary_size, listed))
        best = [(token, _finite(logprobs["token_logprobs"][at]))]  # at temperature 0 it is the likeliest
        return StockRow(token, PartialRow.of(self._vocabulary_size, best, listed))

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
            await self.score(Ask([0], (), Wanted(most)))
        except EngineRefusedError as error:
            said = _ALLOWED.search(str(error))
            if said is None:
                raise UnsupportedModelError(f"vLLM cannot be used: {error}") from error
            most = int(said[1])
        if most < 1:
            raise UnsupportedModelError("vLLM lists no log-probabilities: start it with --max-logprobs -1")
        try:
            rows = await self.score(Ask([0], (), Wanted(1, (0, 1))))
        except EngineRefusedError:
            return most, False
        return most, rows[0].known.knows(0) and rows[0].known.knows(1)


def _are_ids_wanted(wanted: Wanted) -> bool:
    return wanted.likeliest_count <= 1 and 0 < len(wanted.token_ids) <= _MOST_IDS


def _token_of(name: str) -> int:
    if not name.startswith(_MARK):
        raise ValueError(f"{name!r} is not a token id")
    return int(name.removeprefix(_MARK))


def _finite(value: float) -> float:
    return -math.inf if value <= _LEAST_LOGPROB else value
