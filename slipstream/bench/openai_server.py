"""A server of OpenAI's HTTP API under load: chat completions or completions, streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from slipstream.bench.metrics_page import acceptance_of
from slipstream.bench.prompts import Conversation
from slipstream.bench.records import Acceptance, Record
from slipstream.bench.server import Asked
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.transport.http_client import HttpClient, Origin, RequestError, Response
from slipstream.transport.sse import EventParser

_QUICK_SECONDS = 30.0
"""Most seconds of a request that generates nothing."""


class UnreachableError(SlipstreamError):
    """A server does not answer as it should before the load begins."""

    reason = Reason.SERVICE_FAILED


class OpenAiServer:
    """A server at ``http[s]://host:port/v1``."""

    def __init__(self, name: str, origin: Origin, asked: Asked, token: str | None = None) -> None:
        self.name = name
        self._asked = asked
        self._model = asked.model
        self._base = origin.path
        self._root = origin.path.removesuffix("/v1")
        self._client = HttpClient(origin, {"authorization": f"Bearer {token}"} if token else {})

    async def describe(self) -> str:
        """Return the model's name: the one given, or the first that the server lists."""
        try:
            found = await self._fetched(f"{self._base}/models")
            names = [entry["id"] for entry in found["data"]]
        except RequestError as error:
            told = f": {error.message}" if error.message else ""
            advice = "" if self._base.endswith("/v1") else "; the address usually ends with /v1"
            raise UnreachableError(f"{self.name}: {error}{told}{advice}") from error
        except (KeyError, TypeError) as error:
            raise UnreachableError(f"{self.name}: /models is not a list of models, as OpenAI's API has it") from error
        if self._model and self._model not in names:
            raise UnreachableError(f"{self.name} has no model {self._model}; it has {', '.join(names)}")
        if not names:
            raise UnreachableError(f"{self.name} lists no model")
        self._model = self._model or names[0]
        return self._model

    async def count_tokens(self, text: str) -> int | None:
        """Return what vLLM's /tokenize counts."""
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        try:
            return int((await self._fetched(f"{self._root}/tokenize", asked))["count"])
        except (RequestError, KeyError, TypeError, ValueError):
            return None

    async def counters(self) -> Acceptance | None:
        """Return the counters of /metrics, as vLLM names them."""
        try:
            async with (
                asyncio.timeout(_QUICK_SECONDS),
                self._client.request(f"{self._root}/metrics") as answer,
            ):
                body = b"".join([part async for part in answer.parts()])
                return acceptance_of(body.decode(errors="replace")) if answer.status == 200 else None
        except (RequestError, TimeoutError):
            return None

    async def close(self) -> None:
        """Close the kept connections."""
        self._client.close()

    async def hold(self, conversation: Conversation, intended: float) -> AsyncIterator[Record]:
        """Send each prompt with all that was said before it."""
        said = [{"role": role, "content": content} for role, content in conversation.history]
        for prompt in conversation.prompts:
            record = Record(intended, sent=time.monotonic())
            said.append({"role": "user", "content": prompt})
            text = await self._answer(self._body(said, prompt, conversation.max_tokens), record)
            yield record
            if record.error:
                return
            said.append({"role": "assistant", "content": text})
            intended = time.monotonic()

    def _body(self, said: list[dict[str, str]], prompt: str, max_tokens: int) -> dict[str, Any]:
        asked = self._asked
        body: dict[str, Any] = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": asked.seed,
        }
        if asked.api == "chat":
            body |= {"messages": said, "max_completion_tokens": max_tokens}
        else:
            body |= {"prompt": prompt, "max_tokens": max_tokens}
        if asked.temperature is not None:
            body["temperature"] = asked.temperature
        if asked.ignore_end:
            body["ignore_eos"] = True
        if asked.draft_length is not None:
            body["speculation"] = asked.draft_length or "off"
        return body

    async def _answer(self, body: Mapping[str, Any], record: Record) -> str:
        """Send a request, and return its answer's text. Failures are in the record."""
        path = f"{self._base}/{'chat/completions' if self._asked.api == 'chat' else 'completions'}"
        texts: list[str] = []
        try:
            async with asyncio.timeout(self._asked.timeout), self._client.request(path, body) as answer:
                if answer.status != 200:
                    raise await answer.error()
                async for event in _events(answer):
                    _take(event, record, texts)
            if not record.ended:
                raise RequestError("no answer in the stream")
        except TimeoutError:
            record.fail("timed out")
        except RequestError as error:
            record.fail(str(error), error.retry_after)
        if not record.output_tokens:
            record.output_tokens, record.counted = len(record.chunks), False
        return "".join(texts)

    async def _fetched(self, path: str, body: object | None = None) -> Any:
        try:
            async with asyncio.timeout(_QUICK_SECONDS), self._client.request(path, body) as answer:
                if answer.status != 200:
                    raise await answer.error()
                return await answer.json()
        except TimeoutError:
            raise RequestError("timed out") from None


async def _events(answer: Response) -> AsyncIterator[dict[str, Any]]:
    """Yield a stream's events until OpenAI's mark of the end. RequestError if it breaks off."""
    parser, done = EventParser(), False
    async for part in answer.parts():
        for data in parser.feed(part):
            if data == "[DONE]":
                done = True
                continue
            try:
                event = json.loads(data)
            except ValueError:
                raise RequestError("not JSON in the stream") from None
            if not isinstance(event, dict):
                raise RequestError("not JSON in the stream")
            yield event
    if not done:
        raise RequestError("stream broke off")


def _take(event: Mapping[str, Any], record: Record, texts: list[str]) -> None:
    """Note an event. RequestError if it is an error."""
    if found := event.get("error"):
        detail = (found.get("code") or found.get("type")) if isinstance(found, dict) else ""
        raise RequestError(f"in the stream: {detail or 'error'}")
    now = time.monotonic()
    for choice in event.get("choices") or ():
        record.ended = now
        if text := _text(choice):
            texts.append(text)
            record.chunks.append(now)
    if usage := event.get("usage"):
        record.prompt_tokens = usage.get("prompt_tokens") or 0
        record.output_tokens = usage.get("completion_tokens") or 0
    if told := (event.get("metrics") or {}).get("speculative_decoding"):
        record.acceptance = Acceptance(
            told.get("num_draft_tokens", 0), told.get("num_accepted_draft_tokens", 0), told.get("num_spec_steps", 0)
        )


def _text(choice: Mapping[str, Any]) -> str:
    """Return a chunk's part of the answer. A chunk that names the role alone has none."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    tools = "".join((call.get("function") or {}).get("arguments") or "" for call in delta.get("tool_calls") or ())
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "") + tools
