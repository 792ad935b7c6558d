"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from gateway.answers import Answers, finish_reason, stop_reason
from gateway.bodies import Completion, CompletionChunk, described
from gateway.errors import ApiError
from gateway.fields import COMMON_REFUSALS, NOT_STORED, GenerationFields, Int32, Refusal, Text
from gateway.gateway import Caller, Model, fingerprint_of, gateway_of
from gateway.logprobs import CompletionLogprobs, joined, likeliest, prompt_logprobs
from gateway.responding import respond
from gateway.usage import StreamUsage, metrics_of, usage_of
from slipstream.client import AsyncClient, Delta, Result, Structure, TokenLogprobs

router = APIRouter()

_DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI and of vLLM."""

_MAX_ANSWERS = 256
"""Most answers of one request: prompts times choices."""

_NOTHING = Delta("")

Tokens = Annotated[list[Int32], Field(min_length=1)]


class CompletionRequest(GenerationFields):
    """A request for texts that go on after one or several prompts."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        **COMMON_REFUSALS,
        "suffix": Refusal("nothing is inserted: the model only goes on"),
        "response_format": Refusal("use structured_outputs"),
        "prediction": Refusal("use /v1/chat/completions"),
        "prompt_embeds": Refusal("give text or token ids"),
        "store": NOT_STORED,
        "add_special_tokens": Refusal("the tokenizer's own are added", (True,)),
    }

    prompt: (
        Text | Tokens | Annotated[list[Text], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    ) = Field(description="a text, a list of token ids, or a list of either; no chat template is applied")
    max_tokens: int = Field(  # the bounds of Int32 would replace this one
        _DEFAULT_MAX_TOKENS,
        ge=0,
        le=2**31 - 1,
        description="most tokens of an answer; 0, with `echo`: only the prompt comes back",
    )
    echo: bool = Field(False, description="begin the text, and the log-probabilities, with the prompt")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="report each token's log-probability, the end token's included, and so many likeliest",
    )

    def check(self) -> None:
        """Refuse fields that do not go together: ApiError."""
        super().check()
        if len(self.prompts) * self.n > _MAX_ANSWERS:
            raise ApiError(400, f"prompt: prompts times n must be at most {_MAX_ANSWERS}", param="prompt")
        if not self.max_tokens and not self.echo:
            raise ApiError(400, "max_tokens: 0 is only allowed with echo: true", param="max_tokens")

    @property
    def reports_tokens(self) -> bool:
        """Return whether a token is told that makes no text certain."""
        return self.logprobs is not None or self.return_token_ids

    def structure(self) -> Structure | None:
        """Return the structure of the answer. ApiError."""
        structured = self.structured()
        return None if structured is None else structured.structure()

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that its answers begin with."""

    text: str = ""
    first_token: str = ""
    """Text of the prompt's first token, if log-probabilities are asked for."""


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """Writes answers, whole and in chunks, in OpenAI's form."""

    asked: CompletionRequest
    model: Model
    id: str
    created: int
    echoes: Sequence[Echo]
    """One for each prompt; empty without ``echo``."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response."""
        shown = [self._shown(result) for result in results]
        prompts = [self._prompt_of(results, index) for index, _ in enumerate(results)]
        return {
            **self._head(),
            "system_fingerprint": fingerprint_of(results[0].weights_fingerprint, results[0].sampling_version),
            "choices": [
                self._whole_choice(index, result, prompt)
                for index, (result, prompt) in enumerate(zip(shown, prompts, strict=True))
            ],
            "usage": usage_of(shown, self.asked.n),
            **metrics_of(shown),
        }

    async def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""
        writers: dict[int, CompletionLogprobs] = {}
        usage = self.asked.stream_usage(answers.results)
        async for index, delta in answers.deltas():
            delta = delta if self.asked.max_tokens else _NOTHING
            usage.add(index, len(delta.token_ids))
            text, before = "", None
            if index not in writers:
                writers[index] = CompletionLogprobs()
                text, before = self._echo(index, writers[index], self._prompt_of(answers.results, index))
            text += delta.text
            if text or (delta.token_ids and self.asked.reports_tokens):
                logprobs = self._logprobs(writers[index], delta.logprobs, before)
                yield self._chunk(index, text, usage, logprobs, delta)
        results = [self._shown(result) for result in answers.results]
        for index, result in enumerate(results):
            yield self._chunk(index, "", usage, ended=result)
        if self.asked.includes_usage:
            yield {**self._head(), "choices": [], "usage": usage_of(results, self.asked.n), **metrics_of(results)}

    def _shown(self, result: Result) -> Result:
        """Return a result as far as it was asked for: the orchestrator generates at least one
        token."""
        if self.asked.max_tokens:
            return result
        return Result(
            finish_reason="MAX_TOKENS",
            prompt_token_count=result.prompt_token_count,
            cached_token_count=result.cached_token_count,
        )

    def _prompt_of(self, results: Sequence[Result], index: int) -> Sequence[TokenLogprobs]:
        """Return the log-probabilities of the prompt of an answer. The first answer to a prompt
        has them."""
        return results[index - index % self.asked.n].prompt_logprobs

    def _whole_choice(self, index: int, result: Result, prompt: Sequence[TokenLogprobs]) -> dict[str, Any]:
        writer = CompletionLogprobs()
        echoed, before = self._echo(index, writer, prompt)
        logprobs = self._logprobs(writer, result.logprobs, before)
        choice = self._choice(index, echoed + result.text, logprobs, result.token_ids, result)
        if self.asked.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(prompt, self.asked.prompt_logprobs)
        return choice

    def _echo(
        self, index: int, writer: CompletionLogprobs, prompt: Sequence[TokenLogprobs]
    ) -> tuple[str, dict[str, Any] | None]:
        """Return the text before an answer, and its log-probabilities if they are asked for."""
        if not self.asked.echo:
            return "", None
        echo = self.echoes[index // self.asked.n]
        if self.asked.logprobs is None:
            return echo.text, None
        tokens = likeliest(prompt, self.asked.logprobs)
        return echo.text, joined([writer.first(echo.first_token), writer.part(tokens)])

    def _logprobs(
        self, writer: CompletionLogprobs, tokens: Sequence[TokenLogprobs], before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        if self.asked.logprobs is None:
            return None
        part = writer.part(likeliest(tokens, self.asked.logprobs))
        return part if before is None else joined([before, part])

    def _chunk(
        self,
        index: int,
        text: str,
        usage: StreamUsage,
        logprobs: dict[str, Any] | None = None,
        delta: Delta | None = None,
        ended: Result | None = None,
    ) -> dict[str, Any]:
        choice = self._choice(index, text, logprobs, () if delta is None else delta.token_ids, ended)
        return {**self._head(), "choices": [choice], **usage.part(index)}

    def _choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, token_ids: Sequence[int], ended: Result | None
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        if ended is not None:
            choice |= {"finish_reason": finish_reason(ended), "stop_reason": stop_reason(ended)}
        return {**choice, "token_ids": token_ids} if self.asked.return_token_ids else choice

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
        }


@router.post("/v1/completions", responses=described(Completion, CompletionChunk))
async def create_completion(asked: CompletionRequest, request: Request, caller: Caller) -> Response:
    """Continue one or several prompts."""
    settings = asked.settings(
        max_token_count=max(1, asked.max_tokens),
        structure=asked.structure(),
        top_logprob_count=asked.logprobs,
        prompt_logprobs=asked.echo and asked.logprobs is not None,
    )
    model = await gateway_of(request).model(caller)
    model.check_name(asked.model)
    echoes = [await _echo(caller, asked, prompt) for prompt in asked.prompts] if asked.echo else []
    replies = [await caller.generate(prompt, settings, choice_count=asked.n) for prompt in asked.prompts]
    answers = Answers(caller, replies, asked.error_names)
    form = CompletionForm(asked, model, asked.response_id("cmpl"), int(time.time()), echoes)
    return await respond(request, answers, form, stream=asked.stream)


async def _echo(caller: AsyncClient, asked: CompletionRequest, prompt: str | list[int]) -> Echo:
    """Return a prompt as its answers begin with it. PeerError if it cannot be tokenized."""
    text = prompt if isinstance(prompt, str) else await caller.detokenize(prompt, skip_special_tokens=True)
    if asked.logprobs is None:
        return Echo(text)
    tokens = (await caller.tokenize(prompt)).token_ids if isinstance(prompt, str) else prompt
    return Echo(text, await caller.detokenize(tokens[:1]))
