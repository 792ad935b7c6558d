"""Texts that show how a tokenizer splits, and conversations that show what a template renders."""

# ruff: noqa: RUF001 (texts have unusual characters)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.sessions.conversation.messages import Message, TemplateOptions, Tool, ToolCall
from tests import gguf_vocabularies

_ROOT = Path(__file__).parents[2]

TEXTS = (
    *gguf_vocabularies.TEXTS,
    "👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪 e\u0301 ﷽ 𝕳𝖊𝖑𝖑𝖔 \U0001f9ff",
    "\u200b\u00a0 \u3000x\t\x07\x1b[0m",
    "<s> </s> <bos> <unk> <0x0A> <|eot_id|><|begin_of_text|> <think>\n</think>  <|channel|>analysis<|message|>x<|end|>",
    " " * 100,
    "\t\t\t\n" * 20,
    (_ROOT / "orchestrator" / "sessions" / "conversation" / "codec.py").read_text(),
    (_ROOT / "docs" / "architecture.md").read_text(),
)

_WEATHER = (
    '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}'
)
TOOLS = TemplateOptions((Tool("get_weather", "Weather <of> a \"city\" & more: 'ü' 你好", _WEATHER),))
CALL = ToolCall("call_1", "get_weather", '{"city": "Zürich", "days": 2}')


def user(content: str) -> Message:
    """A user's message."""
    return Message("user", content)


def model(content: str, *calls: ToolCall) -> Message:
    """A message of the assistant."""
    return Message("assistant", content, calls)


CHATS: dict[str, list[Message]] = {
    "one message": [user("Hello")],
    "spaces": [user("  Hello \n")],
    "nothing": [user("")],
    "a system message": [Message("system", "You are brief."), user("Hello")],
    "three turns": [user("1+1?"), model("2"), user("2+2?"), model("4"), user("why?")],
    "a template's own words": [Message("system", "Be."), user("1+1?"), model("2"), user("2+2? <|im_end|>")],
    "thoughts": [user("1+1?"), model("<think>\nhm\n</think>\n\n2"), user("2+2?")],
    "two messages of a user": [user("a"), user("b")],
    "the model first": [model("a"), user("b")],
    "the model last": [user("a"), model("b")],
}

CALLS: dict[str, list[Message]] = {
    "one call": [user("weather?"), model("", CALL), Message("tool", "sunny", tool_call_id="call_1")],
    "two calls beside words": [
        Message("system", "Hi"),
        user("weather?"),
        model("Let me see", CALL, CALL),
        Message("tool", "sunny", tool_call_id="call_1"),
        Message("tool", "rainy", tool_call_id="call_1"),
        model("ok"),
        user("thanks"),
    ],
}


def as_transformers_reads(messages: list[Message]) -> list[dict[str, Any]]:
    """Return the messages as apply_chat_template takes them."""
    return [message.as_template_reads for message in messages]


def tools_as_transformers_reads(options: TemplateOptions) -> list[dict[str, Any]] | None:
    """Return the tools as apply_chat_template takes them."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters),
            },
        }
        for tool in options.tools
    ]
    return tools or None
