"""POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from gateway.answers import Answers, finish_reason
from gateway.fields import COMMON_REFUSALS, GenerationFields, Refusal
from gateway.gateway import Caller, Model, gateway_of
from gateway.responding import respond
from gateway.usage import usage_of
from slipstream.client import Delta, Result

router = APIRouter()

_DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI and of vLLM."""

Tokens = Annotated[list[int], Field(min_length=1)]


class CompletionRequest(GenerationFields):
    """A request for texts that go on after one or several prompts."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        **COMMON_REFUSALS,
        "suffix": Refusal("nothing is inserted: the model only goes on"),
        "response_format": Refusal("use structured_outputs"),
        "prediction": Refusal("use /v1/chat/completions"),
        "prompt_embeds": Refusal("give text or token ids"),
        "add_special_tokens": Refusal("the tokenizer's own are added", (True,)),
    }

    prompt: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)] = (
        Field(description="a text, a list of token ids, or a list of either; no chat template is applied")
    )
    max_tokens: int = Field(_DEFAULT_MAX_TOKENS, ge=1, description="most tokens of an answer")
    echo: bool = Field(False, description="begin the text with the prompt")

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """Writes answers, whole and in chunks, in OpenAI's form."""

    asked: CompletionRequest
    model: Model
    id: str
    created: int
    echoed: Sequence[str]
    """The text before each prompt's answers."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response."""
        choices = [
            self._choice(index, self._echo(index) + result.text, finish_reason(result), result.token_ids)
            for index, result in enumerate(results)
        ]
        return {**self._head(), "choices": choices, "usage": usage_of(results, self.asked.n)}

    async def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""
        for index, _ in enumerate(answers.results):
            if echoed := self._echo(index):
                yield self._chunk(index, echoed)
        async for index, delta in answers.deltas():
            if delta.text or self.asked.return_token_ids:
                yield self._chunk(index, delta.text, delta)
        for index, result in enumerate(answers.results):
            yield self._chunk(index, "", reason=finish_reason(result))
        if self.asked.includes_usage:
            yield {**self._head(), "choices": [], "usage": usage_of(answers.results, self.asked.n)}

    def _echo(self, index: int) -> str:
        return self.echoed[index // self.asked.n]

    def _chunk(self, index: int, text: str, delta: Delta | None = None, reason: str | None = None) -> dict[str, Any]:
        choice = self._choice(index, text, reason, () if delta is None else delta.token_ids)
        chunk = {**self._head(), "choices": [choice]}
        return {**chunk, "usage": None} if self.asked.includes_usage else chunk

    def _choice(self, index: int, text: str, reason: str | None, token_ids: Sequence[int]) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        return {**choice, "token_ids": token_ids} if self.asked.return_token_ids else choice

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
        }


@router.post("/v1/completions")
async def create_completion(asked: CompletionRequest, request: Request, caller: Caller) -> Response:
    """Go on after prompts."""
    structure = None if asked.structured_outputs is None else asked.structured_outputs.structure()
    settings = asked.settings(max_token_count=asked.max_tokens, structure=structure)
    model = await gateway_of(request).model(caller)
    model.check_name(asked.model)
    replies = [await caller.generate(prompt, settings, choice_count=asked.n) for prompt in asked.prompts]
    answers = Answers(caller, replies, "prompt")
    form = CompletionForm(asked, model, f"cmpl-{secrets.token_hex(12)}", int(time.time()), _echoed(asked))
    return await respond(request, answers, form, stream=asked.stream)


def _echoed(asked: CompletionRequest) -> list[str]:
    return [prompt if asked.echo and isinstance(prompt, str) else "" for prompt in asked.prompts]
