"""Parts of an answer, in their order: content, reasoning, and calls of tools. Pure data."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """The next characters of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next characters of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call of a tool."""

    name: str
    call_id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next characters of the last call's arguments, as the model writes its JSON."""

    text: str


Part = Content | Reasoning | CallStart | CallArguments


class PartReader(Protocol):
    """Reads the text of one answer while it comes. The parts are the same, but for their cuts,
    wherever the text is cut."""

    def feed(self, text: str) -> list[Part]:
        """Return the parts that this text makes certain."""

    def finish(self) -> list[Part]:
        """Return what the reader held back. The answer has ended."""


class ContentReader:
    """Reads an answer that is all content."""

    def feed(self, text: str) -> list[Part]:
        """Return the text as it is."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Return nothing: all has been read."""
        return []


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call of a tool."""

    name: str
    call_id: str
    arguments: str
    """JSON as the model writes it: it may break off."""


def collected(parts: Iterable[Part]) -> tuple[str, str, list[Call]]:
    """Return the content, the reasoning and the calls of a whole answer."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for part in parts:
        match part:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart():
                starts.append(part)
                arguments.append([])
            case CallArguments(text):
                arguments[-1].append(text)
    calls = [Call(start.name, start.call_id, "".join(told)) for start, told in zip(starts, arguments, strict=True)]
    return "".join(content), "".join(reasoning), calls


def held_back(text: str, mark: str) -> int:
    """Return how many of the last characters of ``text`` may be the start of ``mark``, which is not
    in it."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
