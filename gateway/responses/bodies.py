"""Bodies of responses, their events and their conversations, for the OpenAPI document. The code
writes them as plain dictionaries, which is faster; tests compare both."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from gateway.bodies import AnswerMetrics, ChosenToken

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """A text of the model."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChosenToken]


class InputText(BaseModel):
    """A text of the caller."""

    type: Literal["input_text"]
    text: str


class ReasoningText(BaseModel):
    """A text of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ItemOfMessage(BaseModel):
    """A message."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["system", "user", "assistant"]
    content: list[OutputText | InputText]


class ItemOfReasoning(BaseModel):
    """The reasoning before an answer."""

    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


class ItemOfCall(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str


class ItemOfCallOutput(BaseModel):
    """The output of a call."""

    id: str
    type: Literal["function_call_output"]
    status: Status
    call_id: str
    output: str


class ToolOfResponse(BaseModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class InputTokens(BaseModel):
    """Tokens of the input by kind."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(BaseModel):
    """Tokens of the output by kind."""

    reasoning_tokens: int


class UsageOfResponse(BaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ErrorOfResponse(BaseModel):
    """The reason why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class ResponseObject(BaseModel):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
    background: bool
    error: ErrorOfResponse | None
    incomplete_details: dict[Literal["reason"], Literal["max_output_tokens"]] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    model: str
    output: list[ItemOfMessage | ItemOfReasoning | ItemOfCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: dict[Literal["id"], str] | None
    prompt_cache_key: None
    reasoning: None
    safety_identifier: None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[Literal["format"], dict[str, Any]]
    tool_choice: str | dict[str, Any]
    tools: list[ToolOfResponse]
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["disabled"]
    usage: UsageOfResponse | None
    user: str | None
    metadata: dict[str, str]
    metrics: AnswerMetrics | None = None


class ResponseEvent(BaseModel):
    """The data of one event of a response."""

    type: str = Field(description="as the Open Responses specification names it, such as `response.output_text.delta`")
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item: ItemOfMessage | ItemOfReasoning | ItemOfCall | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[ChosenToken] | None = None
    arguments: str | None = None
    name: str | None = None
    error: dict[str, str | None] | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


class ItemPage(BaseModel):
    """Some of the items."""

    object: Literal["list"]
    data: list[ItemOfMessage | ItemOfReasoning | ItemOfCall | ItemOfCallOutput]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConversationObject(BaseModel):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class Deleted(BaseModel):
    """An object that was deleted."""

    id: str
    object: Literal["response", "conversation.deleted"]
    deleted: Literal[True]
