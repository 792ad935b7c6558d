"""Conversations to hold: made from a seed, or read from a file."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.goals import BadOptionError
from slipstream.bench.lengths import Lengths

TokenCounter = Callable[[str], Awaitable[int | None]]
"""Returns the number of a text's tokens, without special ones; None if the server cannot say."""

_PIECES = [
    f" {word}"
    for word in "how where which what tell me about the a an of list table module function socket thread file".split()
]
_FILLER = ","
"""One token in every tokenizer that we know."""

_AT_ONCE = 16
"""Prompts that are made at once: each of them asks for the tokens of its text."""

_TRIES = 8
"""Most corrections of a prompt's length."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """User messages to send one after the other, each after the answer to the one before."""

    prompts: tuple[str, ...]
    max_tokens: int
    """Most tokens of each answer."""
    history: tuple[tuple[str, str], ...] = ()
    """Messages before the first prompt, as (role, content)."""
    exact: bool = True
    """False if the number of the prompts' tokens is a guess."""


async def made_conversations(
    count: int, turns: int, prompt: Lengths, output: Lengths, seed: int, tokens_of: TokenCounter
) -> list[Conversation]:
    """Return conversations of random words. The same arguments and the same tokenizer give the same
    ones."""
    pieces = (*_PIECES, _FILLER)
    sizes = dict(zip(pieces, await asyncio.gather(*map(tokens_of, pieces)), strict=True))

    async def one(index: int) -> Conversation:
        rng = random.Random(f"{seed} {index}")
        written = [await _written(prompt.draw(rng), rng, sizes, tokens_of) for _ in range(turns)]
        exact = all(is_exact for _, is_exact in written)
        return Conversation(tuple(text for text, _ in written), output.draw(rng), exact=exact)

    made: list[Conversation] = []
    for first in range(0, count, _AT_ONCE):
        made += await asyncio.gather(*map(one, range(first, min(first + _AT_ONCE, count))))
    return made


async def _written(
    length: int, rng: random.Random, sizes: Mapping[str, int | None], tokens_of: TokenCounter
) -> tuple[str, bool]:
    """Return a text of so many tokens, and whether it is known to have them."""
    if None in sizes.values():
        return "".join(rng.choices(_PIECES, k=length)).lstrip(), False
    pieces: list[str] = []
    known = {piece: size or 1 for piece, size in sizes.items()}
    aim = length
    for _ in range(_TRIES):
        _fill(pieces, aim, rng, known)
        text = "".join(pieces).lstrip()
        found = await tokens_of(text)
        if found == length:
            return text, True
        aim += length - (found or length)
    return text, False


def _fill(pieces: list[str], aim: int, rng: random.Random, sizes: Mapping[str, int]) -> None:
    """Add or drop pieces until their sizes come to ``aim``."""
    total = sum(sizes[piece] for piece in pieces)
    while total > aim and len(pieces) > 1:
        total -= sizes[pieces.pop()]
    while total < aim:
        fitting = [piece for piece in _PIECES if sizes[piece] <= aim - total]
        pieces.append(rng.choice(fitting) if fitting else _FILLER)
        total += sizes[pieces[-1]]


def read_conversations(path: Path, output: Lengths, seed: int) -> list[Conversation]:
    """Return the conversations of a JSONL file, or of ShareGPT's JSON array. BadOptionError, which
    names file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOptionError(f"--prompts {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    found: list[Conversation] = []
    for place, entry in _entries(text, path):
        rng = random.Random(f"{seed} {len(found)}")
        try:
            found.append(_conversation(entry, output.draw(rng)))
        except (KeyError, TypeError, ValueError) as error:
            forms = '{"messages": [...]}, {"prompt": "..."} or ShareGPT\'s {"conversations": [...]}'
            raise BadOptionError(
                f"{place} must be {forms}, each with max_tokens if you like: {error or type(error).__name__}"
            ) from error
    if not found:
        raise BadOptionError(f"--prompts {path} has no prompt")
    return found


def _entries(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        for number, entry in enumerate(_json(text, str(path)), start=1):
            yield f"entry {number} of {path}", entry
        return
    for number, line in enumerate(text.split("\n"), start=1):  # U+2028 is text
        if line.strip():
            yield f"line {number} of {path}", _json(line, f"line {number} of {path}")


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadOptionError(f"{place} is not JSON: {error}") from error


def _conversation(entry: Any, drawn: int) -> Conversation:
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    max_tokens = entry.get("max_tokens", drawn)
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError("max_tokens must be a whole number above 0")
    if "prompt" in entry:
        return Conversation((_text(entry["prompt"], "prompt"),), max_tokens)
    messages = _messages(entry)
    if not messages or messages[-1][0] != "user":
        raise ValueError("the last message must be a user's")
    return Conversation((messages[-1][1],), max_tokens, tuple(messages[:-1]))


def _messages(entry: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    if "messages" in entry:
        return [(_text(one["role"], "role"), _text(one["content"], "content")) for one in entry["messages"]]
    for one in entry["conversations"]:  # the answers come from the server, so that only the first question counts
        if one["from"] in ("human", "user"):
            return [("user", _text(one["value"], "value"))]
    return []


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text")
    return value
