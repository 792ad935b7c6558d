"""A right and a wrong value of each field that the gateway supports, and where each object of a
request belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from fastapi.routing import APIRoute

from gateway.app import ENDPOINTS
from gateway.chat_completions import ChatRequest, JsonSchema, PredictedContent, ResponseFormat
from gateway.chat_messages import CalledFunction, ChatMessage, MessageToolCall, TextPart
from gateway.chat_tools import (
    AllowedTools,
    ChatTool,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    ToolSet,
)
from gateway.completions import CompletionRequest
from gateway.conversations import ConversationRequest, ConversationUpdate
from gateway.fields import AnswerFields, Fields, StreamOptions, StructuredOutputs
from gateway.messages import blocks
from gateway.messages import request as messages
from gateway.responses.items import CallItem, CallOutputItem, InputPart, MessageItem, ReasoningItem
from gateway.responses.request import ConversationName, ResponseRequest, ResponseStreamOptions
from gateway.responses.text import TextFormat, TextOptions
from gateway.responses.tools import AllowedFunctions, ChosenFunction, FunctionTool
from gateway.tokenization import DetokenizeRequest, TokenizeRequest
from tests.gateway_process import GatewayProcess

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MODEL = "embedded-target"
SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f"}}
MESSAGES = "/v1/messages"
INPUT_TOOL = {"name": "f", "input_schema": SCHEMA}
OUTPUT_FORMAT = {"type": "json_schema", "schema": SCHEMA}
TEXT_BLOCK = {"type": "text", "text": "Hi"}
THINKING_BLOCK = {"type": "thinking", "thinking": "Hm.", "signature": ""}
TOOL_USE_BLOCK = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
TOOL_RESULT_BLOCK = {"type": "tool_result", "tool_use_id": "c1", "content": "2"}


@dataclass(frozen=True, slots=True)
class Example:
    """A value of a field that is taken, one that is refused, and fields that either needs."""

    right: Any
    """A function makes the value at a running gateway."""
    wrong: Any
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an object in a request: the request's path, the object's own path in it, and the
    body around the object."""

    path: str | Callable[[GatewayProcess], str]
    prefix: str
    body: Callable[[Mapping[str, Any]], dict[str, Any]]


def _chat(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}


def _completion(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "import ", "max_tokens": 2, **fields}


def _message(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": "Hi", **fields}


def _response(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "input": "Hi", "max_output_tokens": 2, **fields}


def _item(fields: Mapping[str, Any]) -> dict[str, Any]:
    return _response({"input": [_message(fields)]})


_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "5"}


_FUNCTION = {"type": "function", "name": "f"}
_FUNCTIONS = {"type": "allowed_tools", "mode": "required", "tools": [_FUNCTION]}


def _choosing(choice: Any, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return _response({"tools": [{**_FUNCTION, **(fields or {})}], "tool_choice": choice})


def _items(*items: Mapping[str, Any]) -> dict[str, Any]:
    return _response({"input": [_message({}), *items]})


def _made(path: str, body: Mapping[str, Any]) -> Callable[[GatewayProcess], Any]:
    return lambda gateway: gateway.send(path, body).body["id"]


def _calling(fields: Mapping[str, Any]) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "f"}, **fields}
    return _chat({"messages": [_message({}), _message({"role": "assistant", "tool_calls": [call]}), _message({})]})


def _offering(choice: Any, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return _chat({"tools": [{**TOOL, **(fields or {})}], "tool_choice": choice})


def _allowed(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL], **fields}}


def _schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}


def _anthropic(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": [_message({})], "max_tokens": 2, **fields}


def _block(role: str, block: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A request with the block of a first message. A text stands beside it, for blocks without."""
    said = {"role": role, "content": [{**block, **fields}, TEXT_BLOCK]}
    return _anthropic({"messages": [said, _message({})]})


PLACES: dict[type[Fields], Place] = {
    ChatRequest: Place(CHAT, "", _chat),
    ChatMessage: Place(CHAT, "messages[0].", lambda fields: _chat({"messages": [_message(fields), _message({})]})),
    MessageToolCall: Place(CHAT, "messages[1].tool_calls[0].", _calling),
    CalledFunction: Place(
        CHAT, "messages[1].tool_calls[0].function.", lambda fields: _calling({"function": {"name": "f", **fields}})
    ),
    ChatTool: Place(CHAT, "tools[0].", lambda fields: _offering("required", fields)),
    FunctionDefinition: Place(
        CHAT, "tools[0].function.", lambda fields: _offering("required", {"function": {"name": "f", **fields}})
    ),
    NamedTool: Place(CHAT, "tool_choice.", lambda fields: _offering({**TOOL, **fields})),
    NamedFunction: Place(
        CHAT,
        "tool_choice.function.",
        lambda fields: _offering({"type": "function", "function": {"name": "f", **fields}}),
    ),
    AllowedTools: Place(CHAT, "tool_choice.", lambda fields: _offering({**_allowed({}), **fields})),
    ToolSet: Place(CHAT, "tool_choice.allowed_tools.", lambda fields: _offering(_allowed(fields))),
    TextPart: Place(
        CHAT,
        "messages[0].content[0].",
        lambda fields: _chat({"messages": [_message({"content": [{"type": "text", "text": "Hi", **fields}]})]}),
    ),
    StreamOptions: Place(CHAT, "stream_options.", lambda fields: _chat({"stream": True, "stream_options": fields})),
    StructuredOutputs: Place(
        COMPLETIONS, "structured_outputs.", lambda fields: _completion({"structured_outputs": fields})
    ),
    ResponseFormat: Place(
        CHAT, "response_format.", lambda fields: _chat({"response_format": {"type": "text", **fields}})
    ),
    JsonSchema: Place(CHAT, "response_format.json_schema.", lambda fields: _chat({"response_format": _schema(fields)})),
    PredictedContent: Place(
        CHAT, "prediction.", lambda fields: _chat({"prediction": {"type": "content", "content": "Hi", **fields}})
    ),
    CompletionRequest: Place(COMPLETIONS, "", _completion),
    ResponseRequest: Place(RESPONSES, "", _response),
    MessageItem: Place(RESPONSES, "input[0].", _item),
    InputPart: Place(
        RESPONSES,
        "input[0].content[0].",
        lambda fields: _item({"content": [{"type": "input_text", "text": "Hi", **fields}]}),
    ),
    CallItem: Place(RESPONSES, "input[1].", lambda fields: _items({**_CALL, **fields}, _OUTPUT)),
    CallOutputItem: Place(RESPONSES, "input[2].", lambda fields: _items(_CALL, {**_OUTPUT, **fields})),
    ReasoningItem: Place(RESPONSES, "input[1].", lambda fields: _items({"type": "reasoning", **fields}, _message({}))),
    FunctionTool: Place(RESPONSES, "tools[0].", lambda fields: _choosing("required", fields)),
    ChosenFunction: Place(RESPONSES, "tool_choice.", lambda fields: _choosing({**_FUNCTION, **fields})),
    AllowedFunctions: Place(RESPONSES, "tool_choice.", lambda fields: _choosing({**_FUNCTIONS, **fields})),
    TextOptions: Place(RESPONSES, "text.", lambda fields: _response({"text": fields})),
    TextFormat: Place(
        RESPONSES,
        "text.format.",
        lambda fields: _response(
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, **fields}}}
        ),
    ),
    ConversationName: Place(RESPONSES, "conversation.", lambda fields: _response({"conversation": fields})),
    ResponseStreamOptions: Place(RESPONSES, "stream_options.", lambda fields: _response({"stream_options": fields})),
    ConversationRequest: Place("/v1/conversations", "", dict),
    ConversationUpdate: Place(lambda gateway: f"/v1/conversations/{_made('/v1/conversations', {})(gateway)}", "", dict),
    TokenizeRequest: Place("/tokenize", "", lambda fields: {"prompt": "Hi", **fields}),
    DetokenizeRequest: Place("/detokenize", "", lambda fields: {"tokens": [70], **fields}),
}

PLACES |= {
    messages.MessageRequest: Place(MESSAGES, "", _anthropic),
    messages.CountRequest: Place(
        f"{MESSAGES}/count_tokens", "", lambda fields: {"model": MODEL, "messages": [_message({})], **fields}
    ),
    messages.InputTool: Place(MESSAGES, "tools[0].", lambda fields: _anthropic({"tools": [{**INPUT_TOOL, **fields}]})),
    messages.ToolChoice: Place(
        MESSAGES,
        "tool_choice.",
        lambda fields: _anthropic({"tools": [INPUT_TOOL], "tool_choice": {"type": "auto", **fields}}),
    ),
    messages.Thinking: Place(
        MESSAGES, "thinking.", lambda fields: _anthropic({"thinking": {"type": "disabled", **fields}})
    ),
    messages.OutputConfig: Place(MESSAGES, "output_config.", lambda fields: _anthropic({"output_config": fields})),
    messages.OutputFormat: Place(
        MESSAGES,
        "output_config.format.",
        lambda fields: _anthropic({"output_config": {"format": {**OUTPUT_FORMAT, **fields}}}),
    ),
    messages.RequestMetadata: Place(MESSAGES, "metadata.", lambda fields: _anthropic({"metadata": fields})),
    blocks.InputMessage: Place(
        MESSAGES, "messages[0].", lambda fields: _anthropic({"messages": [_message(fields), _message({})]})
    ),
    blocks.CacheControl: Place(
        MESSAGES, "cache_control.", lambda fields: _anthropic({"cache_control": {"type": "ephemeral", **fields}})
    ),
    blocks.TextBlock: Place(MESSAGES, "messages[0].content[0].", lambda fields: _block("user", TEXT_BLOCK, fields)),
    blocks.ThinkingBlock: Place(
        MESSAGES, "messages[0].content[0].", lambda fields: _block("assistant", THINKING_BLOCK, fields)
    ),
    blocks.ToolUseBlock: Place(
        MESSAGES, "messages[0].content[0].", lambda fields: _block("assistant", TOOL_USE_BLOCK, fields)
    ),
    blocks.ToolResultBlock: Place(
        MESSAGES, "messages[0].content[0].", lambda fields: _block("user", TOOL_RESULT_BLOCK, fields)
    ),
}

_COMMON = {
    "model": Example(MODEL, "other"),
    "stream": Example(False, "yes"),
    "stream_options": Example({"include_usage": True}, True, {"stream": True}),
    "n": Example(2, 65),
    "temperature": Example(0.5, -1),
    "top_p": Example(0.5, 0, {"temperature": 1}),
    "top_k": Example(-1, -2),
    "min_p": Example(0.1, 2),
    "presence_penalty": Example(1, 3),
    "frequency_penalty": Example(-1, -3),
    "repetition_penalty": Example(1.1, 0),
    "logit_bias": Example({"70": 100}, {"a": 1}),
    "seed": Example(2**63 - 1, -1),
    "stop": Example(["a", "b"], [""]),
    "stop_token_ids": Example([70], 70),
    "include_stop_str_in_output": Example(True, "yes", {"stop": "a"}),
    "min_tokens": Example(2, -1),
    "ignore_eos": Example(True, 1),
    "structured_outputs": Example({"choice": ["yes", "no"]}, {}),
    "guided_json": Example({"enum": [1, 2]}, 5),
    "guided_regex": Example("[ab]", ["a"]),
    "guided_choice": Example(["yes", "no"], "yes"),
    "guided_grammar": Example('start: "a" | "b"', ["a"]),
    "allowed_token_ids": Example([70, 80], [10**6]),
    "prompt_logprobs": Example(20, 21),
    "request_id": Example("mine", "two words"),
    "return_token_ids": Example(True, "yes"),
    "metadata": Example({"task": "sums", "a": "b"}, {"task": "two words"}),
    "user": Example("ann", 5),
    "speculation": Example(4, "fast"),
}

_IDENTITY = {"id": Example("msg_1", 5), "status": Example("completed", "done")}
"""Fields of all items of an input."""

_PROMPT = {
    "model": Example(MODEL, "other"),
    "messages": Example([{"role": "user", "content": [TEXT_BLOCK]}], []),
    "system": Example([TEXT_BLOCK], 5),
    "tools": Example([INPUT_TOOL], [INPUT_TOOL, INPUT_TOOL]),
    "tool_choice": Example({"type": "any"}, {"type": "always"}, {"tools": [INPUT_TOOL]}),
    "thinking": Example({"type": "disabled"}, {"type": "enabled"}),
    "output_config": Example({"format": OUTPUT_FORMAT}, 5),
    "cache_control": Example({"type": "ephemeral"}, True),
    "chat_template_kwargs": Example({"enable_thinking": False}, {"thinks": True}),
}
_CACHED = Example({"type": "ephemeral", "ttl": "1h"}, True)

EXAMPLES: dict[type[Fields], dict[str, Example]] = {
    messages.CountRequest: _PROMPT,
    messages.MessageRequest: {
        **_PROMPT,
        "max_tokens": Example(1, 0),
        "stream": Example(True, "yes"),
        "stop_sequences": Example(["a", "b"], [""]),
        "temperature": Example(0.5, -1),
        "top_p": Example(0.5, 0, {"temperature": 1}),
        "top_k": Example(5, -1),
        "metadata": Example({"user_id": "ann"}, "ann"),
        "service_tier": Example("auto", "priority"),
        "seed": Example(2**63 - 1, -1),
        "speculation": Example(4, "fast"),
    },
    messages.InputTool: {
        "type": Example("custom", "bash_20250124"),
        "name": Example("g", "a name"),
        "description": Example("Do it.", 5),
        "input_schema": Example(SCHEMA, "object"),
        "strict": Example(True, "yes"),
        "eager_input_streaming": Example(True, "yes"),
        "cache_control": _CACHED,
    },
    messages.ToolChoice: {
        "type": Example("any", "always"),
        "name": Example("f", "g", {"type": "tool"}),
        "disable_parallel_tool_use": Example(True, "yes"),
    },
    messages.Thinking: {
        "type": Example("disabled", "enabled"),
        "budget_tokens": Example(1024, 0),
    },
    messages.OutputConfig: {"format": Example(OUTPUT_FORMAT, "json")},
    messages.OutputFormat: {"type": Example("json_schema", "xml"), "schema": Example(SCHEMA, "object")},
    messages.RequestMetadata: {
        "user_id": Example("ann", 5),
        "task": Example("sums", "two words"),
        "do_not_collect": Example(True, "yes"),
    },
    blocks.InputMessage: {"role": Example("user", "system"), "content": Example([TEXT_BLOCK], 5)},
    blocks.CacheControl: {"type": Example("ephemeral", "lasting"), "ttl": Example("5m", "2h")},
    blocks.TextBlock: {
        "type": Example("text", "image"),
        "text": Example("Hi", 5),
        "cache_control": _CACHED,
    },
    blocks.ThinkingBlock: {
        "type": Example("thinking", "thought"),
        "thinking": Example("Hm.", 5),
        "signature": Example("s", 5),
    },
    blocks.ToolUseBlock: {
        "type": Example("tool_use", "server_tool_use"),
        "id": Example("c2", 5),
        "name": Example("g", ""),
        "input": Example({"a": 1}, "a"),
        "cache_control": _CACHED,
    },
    blocks.ToolResultBlock: {
        "type": Example("tool_result", "web_search_tool_result"),
        "tool_use_id": Example("c2", "c" * 129),
        "content": Example([TEXT_BLOCK], 5),
        "is_error": Example(True, "yes"),
        "cache_control": _CACHED,
    },
    ChatRequest: {
        **_COMMON,
        "messages": Example([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], []),
        "max_tokens": Example(1, 0),
        "max_completion_tokens": Example(1, 0, {"max_tokens": None}),
        "logprobs": Example(True, 5),
        "top_logprobs": Example(20, 21, {"logprobs": True}),
        "response_format": Example({"type": "text"}, "text"),
        "prediction": Example({"type": "content", "content": "Hello"}, "Hello"),
        "tools": Example([TOOL], [TOOL, TOOL]),
        "tool_choice": Example("required", "always", {"tools": [TOOL]}),
        "parallel_tool_calls": Example(False, "no", {"tools": [TOOL]}),
        "store": Example(False, "no"),
        "chat_template_kwargs": Example({"enable_thinking": False}, {"thinks": True}),
    },
    ChatMessage: {
        "role": Example("user", "robot"),
        "content": Example("Hi", 5),
        "tool_calls": Example([{"id": "c1", **TOOL}], [{}], {"role": "assistant"}),
        "parsed": Example({"a": 1}, "a", {"role": "assistant", "content": '{"a": 1}'}),
        "tool_call_id": Example("c1", "c" * 129, {"role": "tool"}),
    },
    MessageToolCall: {
        "id": Example("c1", "c" * 129),
        "type": Example("function", "custom"),
        "function": Example({"name": "f", "arguments": "{}"}, "f"),
    },
    CalledFunction: {
        "name": Example("g", ""),
        "arguments": Example('{"a": 1}', '{"a": '),
        "parsed_arguments": Example({"a": 1}, "a", {"arguments": '{"a": 1}'}),
    },
    ChatTool: {"type": Example("function", "custom"), "function": Example({"name": "f"}, "f")},
    FunctionDefinition: {
        "name": Example("f", "a name"),
        "description": Example("Do it.", 5),
        "parameters": Example(SCHEMA, {"type": "string"}),
        "strict": Example(True, "yes"),
    },
    NamedTool: {"type": Example("function", "custom"), "function": Example({"name": "f"}, "f")},
    NamedFunction: {"name": Example("f", "g")},
    AllowedTools: {
        "type": Example("allowed_tools", "tools"),
        "allowed_tools": Example(_allowed({})["allowed_tools"], []),
    },
    ToolSet: {"mode": Example("required", "auto"), "tools": Example([TOOL], [])},
    TextPart: {"type": Example("text", "image_url"), "text": Example("Hi", 5)},
    StreamOptions: {"include_usage": Example(True, "yes"), "continuous_usage_stats": Example(True, "yes")},
    StructuredOutputs: {
        "json": Example(SCHEMA, 5),
        "regex": Example("[ab]", 5),
        "choice": Example(["yes"], "yes"),
        "grammar": Example('start: "a"', 5),
    },
    ResponseFormat: {
        "type": Example("text", "xml"),
        "json_schema": Example({"name": "n", "schema": SCHEMA}, "n", {"type": "json_schema"}),
    },
    JsonSchema: {
        "name": Example("n", 5),
        "description": Example("a thing", 5),
        "schema": Example(SCHEMA, "object"),
        "strict": Example(True, "yes"),
    },
    PredictedContent: {"type": Example("content", "text"), "content": Example("Hello", 5)},
    CompletionRequest: {
        **_COMMON,
        "prompt": Example([[70], [80, 90]], []),
        "max_tokens": Example(0, -1, {"echo": True}),
        "echo": Example(True, "yes"),
        "logprobs": Example(20, 21),
    },
    ResponseRequest: {
        **{name: example for name, example in _COMMON.items() if name in AnswerFields.model_fields},
        "input": Example([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], []),
        "instructions": Example("Be brief.", 5),
        "previous_response_id": Example(_made(RESPONSES, _response({})), "resp_1"),
        "conversation": Example(_made("/v1/conversations", {}), 5),
        "store": Example(False, "no"),
        "background": Example(True, "yes"),
        "metadata": Example({"a": "b", "do_not_collect": "true"}, {"do_not_collect": "yes"}),
        "max_output_tokens": Example(1, 0),
        "include": Example(["message.output_text.logprobs"], ["file_search_call.results"]),
        "top_logprobs": Example(20, 21, {"include": ["message.output_text.logprobs"]}),
        "text": Example({"format": {"type": "text"}}, "text"),
        "tools": Example([_FUNCTION], [_FUNCTION, _FUNCTION]),
        "tool_choice": Example("required", "always", {"tools": [_FUNCTION]}),
        "parallel_tool_calls": Example(False, "no", {"tools": [_FUNCTION]}),
        "chat_template_kwargs": Example({"enable_thinking": False}, {"thinks": True}),
        "stream_options": Example({}, True),
    },
    MessageItem: {
        "type": Example("message", "item_reference"),
        "role": Example("user", "robot"),
        "content": Example("Hi", 5),
        **_IDENTITY,
    },
    CallItem: {
        "type": Example("function_call", "item_reference"),
        "call_id": Example("c1", 5),
        "name": Example("f", ""),
        "arguments": Example("{}", 5),
        "parsed_arguments": Example({}, "{}"),
        **_IDENTITY,
    },
    CallOutputItem: {
        "type": Example("function_call_output", "item_reference"),
        "call_id": Example("c1", 5),
        "output": Example([{"type": "input_text", "text": "5"}], 5),
        **_IDENTITY,
    },
    ReasoningItem: {
        "type": Example("reasoning", "item_reference"),
        "summary": Example([], "so"),
        "content": Example([{"type": "reasoning_text", "text": "so"}], "so"),
        "encrypted_content": Example("so", 5),
        **_IDENTITY,
    },
    InputPart: {
        "type": Example("input_text", "input_image"),
        "text": Example("Hi", 5),
        "logprobs": Example([], "none"),
        "parsed": Example({"a": 1}, "a"),
    },
    FunctionTool: {
        "type": Example("function", "web_search"),
        "name": Example("f", "a name"),
        "description": Example("Do it.", 5),
        "parameters": Example(SCHEMA, {"type": "string"}),
        "strict": Example(True, "yes"),
    },
    ChosenFunction: {"type": Example("function", "custom"), "name": Example("f", "g")},
    AllowedFunctions: {
        "type": Example("allowed_tools", "tools"),
        "mode": Example("required", "auto"),
        "tools": Example([_FUNCTION], []),
    },
    TextOptions: {"format": Example({"type": "text"}, "text")},
    TextFormat: {
        "type": Example("json_schema", "xml"),
        "name": Example("n", 5),
        "description": Example("a thing", 5),
        "schema": Example(SCHEMA, "object"),
        "strict": Example(True, "yes"),
    },
    ConversationName: {"id": Example(_made("/v1/conversations", {}), 5)},
    ResponseStreamOptions: {},
    ConversationRequest: {
        "items": Example([{"role": "developer", "content": "Be brief."}], [_message({})]),
        "metadata": Example({"a": "b", "do_not_collect": "false"}, {"do_not_collect": True}),
    },
    ConversationUpdate: {"metadata": Example({"a": "b"}, {"do_not_collect": "yes"})},
    TokenizeRequest: {
        "model": Example(MODEL, "other"),
        "prompt": Example("Hi", ["Hi"]),
        "messages": Example([{"role": "user", "content": "Hi"}], "Hi", {"prompt": None}),
        "add_special_tokens": Example(False, "no"),
        "add_generation_prompt": Example(False, "no", {"messages": [_message({})], "prompt": None}),
        "return_token_strs": Example(True, "yes"),
        "tools": Example([TOOL], [TOOL, TOOL], {"messages": [_message({})], "prompt": None}),
        "chat_template_kwargs": Example(
            {"enable_thinking": False}, {"thinks": True}, {"messages": [_message({})], "prompt": None}
        ),
    },
    DetokenizeRequest: {"model": Example(MODEL, "other"), "tokens": Example([70, 80], [10**6])},
}
"""By the model and the field's name in JSON."""


def request_models() -> dict[type[Fields], str]:
    """Return the models of all requests and of the objects in them, with an endpoint that takes
    each."""
    found: dict[type[Fields], str] = {}
    for route in (route for module in ENDPOINTS for route in module.router.routes):
        if isinstance(route, APIRoute) and route.body_field is not None:
            for model in _models_in(route.body_field.field_info.annotation):
                found.setdefault(model, route.path)
    return found


def names_of(model: type[Fields]) -> set[str]:
    """Return the names of a model's supported fields in JSON."""
    return {field.alias or name for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[Fields]]:
    if isinstance(annotation, type) and issubclass(annotation, Fields):
        yield annotation
        for each in annotation.model_fields.values():
            yield from _models_in(each.annotation)
    for argument in get_args(annotation):
        yield from _models_in(argument)
