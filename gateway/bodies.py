"""Bodies of successful responses, for the OpenAPI document. The code writes them as plain
dictionaries, which is faster; a test compares both."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class PromptDetails(BaseModel):
    """Prompt tokens by kind."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Generated tokens by kind."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Tokens of all answers together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SpeculativeDecoding(BaseModel):
    """vLLM's statistics of speculation."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int] = Field(description="element j: steps of which exactly j tokens were accepted")
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class AnswerMetrics(BaseModel):
    """vLLM's metrics of an answer."""

    speculative_decoding: SpeculativeDecoding


class RankedToken(BaseModel):
    """vLLM's log-probability of a token of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, RankedToken] | None]


class Choice(BaseModel):
    """The part that all choices have."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: str | int | None = Field(None, description="vLLM's; the stop text or token id that ended the answer")
    token_ids: list[int] | None = Field(None, description="vLLM's; only with `return_token_ids`")


class Response(BaseModel):
    """The part that all answers have."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    metrics: AnswerMetrics | None = None


class LikelyToken(BaseModel):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(LikelyToken):
    """A token that was chosen."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat's answer."""

    content: list[ChosenToken]
    refusal: None


class CalledFunction(BaseModel):
    """A function that the answer calls."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(BaseModel):
    """The answer to a conversation."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Choice):
    """One of the answers to a conversation."""

    message: AnswerMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(Response):
    """The answers to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None


class CalledFunctionDelta(BaseModel):
    """The next part of a function's call."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """The next part of a call of a tool."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class ChatDelta(BaseModel):
    """The next part of an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Choice):
    """The next part of one of the answers."""

    delta: ChatDelta
    logprobs: ChatLogprobs | None


class ChatCompletionChunk(Response):
    """The data of one event of a stream of chat completions."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class TextLogprobs(BaseModel):
    """Log-probabilities of a text. Nothing predicts a prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Choice):
    """A text that goes on after a prompt, or its next part."""

    text: str
    logprobs: TextLogprobs | None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(Response):
    """Texts that go on after prompts."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage


class CompletionChunk(Response):
    """The data of one event of a stream of completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """All models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeBody(BaseModel):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(BaseModel):
    """The text of tokens."""

    prompt: str


class HealthBody(BaseModel):
    """The gateway is healthy."""

    status: Literal["ok"]


class VersionBody(BaseModel):
    """Slipstream's version."""

    version: str


def described(body: type[BaseModel], chunk: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return the successful response of an endpoint, for the OpenAPI document. With ``chunk`` it
    may be a stream."""
    if chunk is None:
        return {200: {"model": body, "description": "the answer"}}
    content = [{"$ref": f"#/components/schemas/{name}"} for name in (chunk.__name__, "ErrorBody")]
    told = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": content}}
    data = {"anyOf": [{"const": "[DONE]"}, told]}
    text = "an event; that of an error, or else `[DONE]`, is the last one"
    stream = {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"], "description": text}}
    return {
        200: {
            "model": body,
            "description": "the answer, or with `stream` its chunks",
            "content": {"text/event-stream": stream},
        }
    }
