"""A file of prompts, one a line: JSON objects or plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.cli.terminal import file_text
from slipstream.transport.reloading import FileError

_SHOWN_FAULTS = 5
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that the target is to answer, or a raw text if there are no messages."""

    line: int
    """Number of its line in the file, from 1."""
    messages: tuple[tuple[str, str], ...]
    """(role, content); the last one is a user's."""
    text: str = ""


def read_prompts(option: str, path: Path) -> list[Prompt]:
    """Return the prompts of a file. FileError and NotTextError, which name the option and the lines
    that are wrong.

    If the first line is a JSON object, all are: {"messages": [{"role": ..., "content": ...}]}, or
    {"prompt": ...} for a raw text. Otherwise each line is a user's message. Empty lines do not
    count.
    """
    text = file_text(option, path).removeprefix("\ufeff")  # the mark with which some editors begin UTF-8
    read = (line.removesuffix("\r") for line in text.split("\n"))  # U+2028 is text
    lines = [(number, line) for number, line in enumerate(read, 1) if line.strip()]
    if not lines:
        raise FileError(f"{option} {path} has no prompt")
    if not lines[0][1].lstrip().startswith("{"):
        return [Prompt(number, (("user", line),)) for number, line in lines]
    prompts: list[Prompt] = []
    faults: list[str] = []
    for number, line in lines:
        try:
            prompts.append(_prompt(number, json.loads(line)))
        except ValueError as error:  # JSONDecodeError is one
            faults.append(f"line {number}: {error}")
    if faults:
        shown = "; ".join(_shown(faults))
        raise FileError(
            f'{option} {path} must have {{"messages": [...]}} or {{"prompt": "..."}} in each line, but {shown}'
        )
    return prompts


def _shown(faults: list[str]) -> Iterator[str]:
    yield from faults[:_SHOWN_FAULTS]
    if len(faults) > _SHOWN_FAULTS:
        yield f"and {len(faults) - _SHOWN_FAULTS} more"


def _prompt(number: int, entry: Any) -> Prompt:
    if not isinstance(entry, dict) or len(entry) != 1 or not entry.keys() & {"messages", "prompt"}:
        raise ValueError("it must be an object with messages or prompt, and nothing else")
    if "prompt" in entry:
        return Prompt(number, (), _text(entry["prompt"], "prompt"))
    messages = entry["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of at least one message")
    said = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages))
    if said[-1][0] != "user":
        raise ValueError("the last message must be a user's")
    return Prompt(number, said)


def _message(message: Any, name: str) -> tuple[str, str]:
    if not isinstance(message, dict) or message.keys() != {"role", "content"}:
        raise ValueError(f"{name} must be an object with role and content, and nothing else")
    if message["role"] not in _ROLES:
        raise ValueError(f"{name}.role must be {', '.join(_ROLES[:-1])} or {_ROLES[-1]}")
    return message["role"], _text(message["content"], f"{name}.content")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty")
    return value
