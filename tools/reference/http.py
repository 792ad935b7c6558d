"""The HTTP page: the endpoints of the gateway, and each field of their requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from gateway.app import ENDPOINTS
from gateway.chat_completions import ChatRequest
from gateway.chat_messages import ChatMessage
from gateway.chat_tools import FunctionDefinition
from gateway.completions import CompletionRequest
from gateway.conversations import ConversationRequest, ConversationUpdate
from gateway.fields import Fields
from gateway.messages.blocks import InputMessage
from gateway.messages.request import InputTool, MessageRequest
from gateway.responses.items import CallItem, CallOutputItem, MessageItem, ReasoningItem
from gateway.responses.request import ResponseRequest
from gateway.responses.tools import FunctionTool
from gateway.tokenization import DetokenizeRequest, TokenizeRequest
from tools.reference.markdown import cell, generated, table

_HEAD = """# HTTP

The gateway's endpoints ([guide](../guides/openai.md)). `/openapi.json` describes them for programs.
A field that is in no table is refused by its name, with status 400. So is a field whose row says
*refused*, unless its value asks for nothing. Null is the same as a field that is left out. Tests
send each supported field a right and a wrong value, and each refused field both kinds.
"""

_REQUESTS: tuple[tuple[str, type[Fields]], ...] = (
    ("POST /v1/chat/completions", ChatRequest),
    ("A message of a chat completion", ChatMessage),
    ("A function of a tool", FunctionDefinition),
    ("POST /v1/completions", CompletionRequest),
    ("POST /v1/responses", ResponseRequest),
    ("A tool of a response", FunctionTool),
    ("A message in an input", MessageItem),
    ("A call in an input", CallItem),
    ("The output of a call in an input", CallOutputItem),
    ("Reasoning in an input", ReasoningItem),
    ("POST /v1/conversations", ConversationRequest),
    ("POST /v1/conversations/{conversation}", ConversationUpdate),
    ("POST /v1/messages", MessageRequest),
    ("A message of Anthropic's API", InputMessage),
    ("A tool of Anthropic's API", InputTool),
    ("POST /tokenize", TokenizeRequest),
    ("POST /detokenize", DetokenizeRequest),
)


def page() -> str:
    """Return the page."""
    parts = [generated("the gateway's routes and models"), _HEAD, "\n## Endpoints\n\n"]
    parts.append(table(["endpoint", "what it does"], _endpoints()))
    for title, kind in _REQUESTS:
        parts += [f"\n## {title}\n\n", table(["field", "", "meaning, or what to do instead"], _rows(kind))]
    return "".join(parts)


def _endpoints() -> Iterator[list[str]]:
    for module in ENDPOINTS:
        for route in module.router.routes:
            described: Any = route
            (method,) = described.methods
            path = described.path.replace(":path", "")
            yield [f"`{method} {path}`", cell(described.description)]


def _rows(kind: type[Fields]) -> Iterator[list[str]]:
    for name, field in kind.model_fields.items():
        yield [f"`{field.alias or name}`", "required" if field.is_required() else "", cell(_meaning(field))]
    for name, refusal in sorted(kind.REFUSED.items()):
        harmless = ", ".join(f"`{_json(value)}`" for value in refusal.harmless)
        yield [f"`{name}`", "refused", cell(refusal.why + (f". Accepted: {harmless}" if harmless else ""))]


def _meaning(field: FieldInfo) -> str:
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if field.description is None and choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    return field.description or ""


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')
