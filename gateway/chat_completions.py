"""POST /v1/chat/completions."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from gateway.answers import Answers, stop_reason
from gateway.bodies import ChatCompletion, ChatCompletionChunk, described
from gateway.chat_messages import ONLY_TEXT, ChatMessage, TextPart, conversation_of, text_of
from gateway.chat_parts import PartWriter, message_of
from gateway.chat_tools import MAX_TOOLS, ChatTool, ToolChoice, tool_use
from gateway.errors import ApiError
from gateway.fields import COMMON_REFUSALS, Fields, GenerationFields, Int32, Refusal, Text
from gateway.gateway import Caller, Model, fingerprint_of, gateway_of
from gateway.logprobs import chat_logprobs, likeliest, prompt_logprobs
from gateway.reading import ReadAnswer, Reading, parts_of
from gateway.responding import respond
from gateway.tools import ToolUse, variables_of
from gateway.usage import StreamUsage, metrics_of, usage_of
from slipstream.client import Delta, Result, Structure, TemplateOptions, TokenLogprobs

router = APIRouter()


class JsonSchema(Fields):
    """A named schema. It is always followed, so ``strict`` changes nothing."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field({"type": "object"}, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def structure(self) -> Structure | None:
        """Return the structure that the answer must have. ApiError."""
        if (self.type == "json_schema") != (self.json_schema is not None):
            message = "response_format.json_schema must be set if, and only if, type is json_schema"
            raise ApiError(400, message, param="response_format.json_schema")
        if self.json_schema is not None:
            return Structure(json_schema=json.dumps(self.json_schema.schema_))
        return Structure(json_schema='{"type": "object"}') if self.type == "json_object" else None


class PredictedContent(Fields):
    """Text that the answer probably contains."""

    type: Literal["content"]
    content: Text | list[TextPart]


class ChatRequest(GenerationFields):
    """A request for answers to a conversation."""

    REFUSED: ClassVar[Mapping[str, Refusal]] = {
        **COMMON_REFUSALS,
        "functions": Refusal("use tools", ([],)),
        "function_call": Refusal("use tool_choice", ("none", "auto")),
        "modalities": Refusal(ONLY_TEXT, (["text"],)),
        "audio": Refusal(ONLY_TEXT),
        "reasoning_effort": Refusal("the chat template decides"),
        "verbosity": Refusal("ask for it in a message"),
        "web_search_options": Refusal("there is no search"),
        "moderation": Refusal("nothing is moderated"),
        "safety_identifier": Refusal("requests are not moderated"),
        "prompt_cache_key": Refusal("prefixes are found without a key"),
        "prompt_cache_retention": Refusal("the server decides"),
        "prompt_cache_options": Refusal("the server decides"),
        "chat_template": Refusal("the model's own is used"),
        "add_generation_prompt": Refusal("an answer always begins", (True,)),
        "continue_final_message": Refusal("an answer always begins", (False,)),
        "documents": Refusal("write them into a message"),
        "echo": Refusal("use /v1/completions", (False,)),
    }

    messages: list[ChatMessage] = Field(min_length=1, description="text only; the last one is the user's, or a tool's")
    max_completion_tokens: Int32 | None = Field(None, ge=1, description="most tokens of an answer")
    max_tokens: Int32 | None = Field(None, ge=1, description="the older name of `max_completion_tokens`")
    logprobs: bool = Field(False, description="report each token's log-probability, the end token's included")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="and so many likeliest tokens; needs `logprobs`")
    response_format: ResponseFormat | None = Field(
        None, description="`text`, `json_object`, or `json_schema`, which is always followed"
    )
    prediction: PredictedContent | None = Field(
        None, description="text that the answer probably contains: it comes sooner, and does not change"
    )

    tools: list[ChatTool] | None = Field(None, max_length=MAX_TOOLS, description="functions that the model may call")
    tool_choice: ToolChoice | None = Field(
        None,
        description="`auto`, by default: the model decides. `none`: it is not told of them. `required`, a function's name, or "
        "`allowed_tools` with the mode `required`: the answer is a call, enforced with its arguments",
    )
    store: bool | None = Field(
        None,
        json_schema_extra={"enum": [False]},
        description="false: the operator does not collect this text to train drafts. true is refused, because nothing is "
        "stored: use `/v1/responses`",
    )
    parallel_tool_calls: bool = Field(
        True, description="false: one call at most; more that the model writes are left out"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="vLLM's; variables of the chat template, such as `enable_thinking`; one it does not read is refused",
    )

    def check(self) -> None:
        """Refuse fields that do not go together: ApiError."""
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(400, "give max_completion_tokens or max_tokens, not both", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs is only allowed with logprobs: true", param="top_logprobs")
        if self.store:
            raise ApiError(400, "store: true is not supported: nothing is stored; use /v1/responses", param="store")

    @property
    def is_private(self) -> bool:
        """True if the operator may not collect the text."""
        return self.store is False or super().is_private

    @property
    def reports_tokens(self) -> bool:
        """Return whether a token is told that makes no text certain."""
        return self.logprobs or self.return_token_ids

    def tool_use(self) -> ToolUse:
        """Return the tools, and what the answer may do with them. ApiError."""
        return tool_use(self.tools or (), self.tool_choice, parallel=self.parallel_tool_calls)

    def structure(self, called: Structure | None = None) -> Structure | None:
        """Return the structure of the answer, ``called`` if it must call a tool. ApiError."""
        structured = self.structured()
        if structured is not None and self.response_format is not None:
            raise ApiError(400, "give response_format or structured_outputs, not both", param="structured_outputs")
        chosen = structured or self.response_format
        asked = None if chosen is None else chosen.structure()
        if asked is not None and called is not None:
            raise ApiError(400, "a tool_choice that forces a call is not allowed with a structure", param="tool_choice")
        return called or asked


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Writes answers, whole and in chunks, in OpenAI's form."""

    asked: ChatRequest
    model: Model
    id: str
    created: int
    reading: Reading

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the body of a response."""
        read = [self.reading.read(result) for result in results]
        body = {
            **self._head("chat.completion"),
            "system_fingerprint": fingerprint_of(results[0].weights_fingerprint, results[0].sampling_version),
            "choices": [self._choice(index, *answer) for index, answer in enumerate(zip(results, read, strict=True))],
            "usage": usage_of(results, self.asked.n, sum(answer.reasoning_token_count for answer in read)),
            **metrics_of(results),
        }
        if self.asked.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(results[0].prompt_logprobs, self.asked.prompt_logprobs)
        return body

    async def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream."""
        usage = self.asked.stream_usage(answers.results)
        writers = [PartWriter() for _ in answers.results]
        readers = [self.reading.reader() for _ in answers.results]
        await answers.wait_first()  # what measures the time to the first token takes any chunk for it
        for index, _ in enumerate(answers.results):
            yield self._chunk(index, {"role": "assistant", "content": ""}, usage)
        async for index, delta, parts in parts_of(answers, readers):
            usage.add(index, 0 if delta is None else len(delta.token_ids))
            told = [writers[index].delta(part) for part in parts]
            if not told and self.asked.reports_tokens:
                told = [{"content": ""}]
            for number, content in enumerate(told):
                yield self._chunk(index, content, usage, None if number else delta)
        for index, result in enumerate(answers.results):
            ended = {"finish_reason": readers[index].finish_reason(result), "stop_reason": stop_reason(result)}
            yield self._chunk(index, {}, usage, ended=ended)
        if self.asked.includes_usage:
            whole = usage_of(answers.results, self.asked.n, sum(reader.reasoning_token_count for reader in readers))
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": whole, **metrics_of(answers.results)}

    def _choice(self, index: int, result: Result, read: ReadAnswer) -> dict[str, Any]:
        choice = {
            "index": index,
            "message": message_of(read),
            "logprobs": self._logprobs(result.logprobs) if self.asked.logprobs else None,
            "finish_reason": read.finish_reason,
            "stop_reason": stop_reason(result),
        }
        return {**choice, "token_ids": result.token_ids} if self.asked.return_token_ids else choice

    def _chunk(
        self,
        index: int,
        content: dict[str, Any],
        usage: StreamUsage,
        delta: Delta | None = None,
        ended: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": content, "logprobs": None, "finish_reason": None}
        choice |= ended or {}
        if self.asked.logprobs and delta is not None and delta.logprobs:
            choice["logprobs"] = self._logprobs(delta.logprobs)
        if self.asked.return_token_ids:
            choice["token_ids"] = [] if delta is None else delta.token_ids
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage.part(index)}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return chat_logprobs(likeliest(tokens, self.asked.top_logprobs or 0))

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
        }


@router.post("/v1/chat/completions", responses=described(ChatCompletion, ChatCompletionChunk))
async def create_chat_completion(asked: ChatRequest, request: Request, caller: Caller) -> Response:
    """Answer a conversation."""
    gateway = gateway_of(request)
    asked.check()
    tools, messages = asked.tool_use(), conversation_of(asked.messages)
    model = await gateway.model(caller)
    model.check_name(asked.model)
    reading = await gateway.reading(caller, model, has_tools=bool(tools.offered))
    structure = asked.structure(tools.structure(reading.tool_format))
    reading = reading.of(tools, structure)
    settings = asked.settings(
        token_origins=reading.needs_origins,
        max_token_count=asked.max_completion_tokens or asked.max_tokens,
        structure=structure,
        top_logprob_count=(asked.top_logprobs or 0) if asked.logprobs else None,
    )
    reply = await caller.answer(
        messages,
        settings,
        prediction=None if asked.prediction is None else text_of(asked.prediction.content),
        choice_count=asked.n,
        template_options=TemplateOptions(tools.template_tools(), variables_of(asked.chat_template_kwargs)),
    )
    answers = Answers(caller, [reply], {"prompt": "messages", **asked.error_names, **tools.error_names()})
    form = ChatForm(asked, model, asked.response_id("chatcmpl"), int(time.time()), reading)
    return await respond(request, answers, form, stream=asked.stream)
