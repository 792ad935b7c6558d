"""The forms in which chat templates read an assistant's calls of tools. Pure.

Most templates take a call's arguments as an object, and a content of "" beside calls. DeepSeek's
take arguments as JSON text, and read calls only beside a content of None. transformers drops such a
content, and with it the calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]


def forms_of_calls(messages: Messages) -> Iterator[Messages]:
    """Yield the messages in each form that a template may read: first as they are, and nothing more
    if none has calls."""
    yield messages
    if not any("tool_calls" in message for message in messages):
        return
    as_text = [_with_text_arguments(message) for message in messages]
    yield as_text
    for form in (messages, as_text):
        yield [_with_no_content(message) for message in form]


def groups_of_calls(messages: Messages) -> Iterator[set[int]]:
    """Yield the indices of the messages with calls and no content, and of those with both: a
    template may read the calls of one kind alone."""
    for silent in (True, False):
        group = {
            index
            for index, message in enumerate(messages)
            if "tool_calls" in message and (not message["content"]) == silent
        }
        if group:
            yield group


def without_calls(messages: Messages, group: set[int]) -> Messages:
    """Return the messages, those of a ``group`` of indices without their calls."""
    return [
        {name: value for name, value in message.items() if index not in group or name != "tool_calls"}
        for index, message in enumerate(messages)
    ]


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = [{**call, "function": _with_text(call["function"])} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _with_text(function: Mapping[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def _with_no_content(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "content": None} if "tool_calls" in message and not message["content"] else message
