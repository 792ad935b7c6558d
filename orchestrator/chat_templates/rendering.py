"""Renders a conversation, and finds the messages that the template leaves out. Pure.

A template that takes a message's content as a list of parts loses a plain string, and some templates skip a role. Both
render without an error. So each conversation is rendered a second time, with marks around each content: a message
without a mark in the result is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from orchestrator.chat_templates.environment import TemplateRefusedError, compile_template

_TELLING = 8
"""Characters of a content from which on its words, found in the prompt, show that it is there."""

_TIMES, _BESIDE = 8, 2**18
"""A rendered prompt may have this many times the messages' characters, and so many beside."""

Content = Callable[[str], Any]
"""How a template takes a message's content."""


class RenderingError(Exception):
    """The template cannot be compiled or rendered. ``refused`` if the template itself refuses the messages."""

    def __init__(self, what: str, *, refused: bool = False) -> None:
        super().__init__(what)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is rendered with: (role, content) pairs, the special tokens by name, and its clock."""

    messages: Sequence[tuple[str, str]]
    special_tokens: dict[str, str]
    clock: datetime


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and the indices of the messages that are not in it."""

    text: str
    left_out: tuple[int, ...]


def render(source: str, conversation: Conversation) -> Rendered:
    """The prompt up to where the answer begins. A content is a string; it is a list of parts where the template loses
    strings. RenderingError."""
    try:
        as_text = _render(source, conversation, str)
    except RenderingError as error:
        try:
            as_parts = _render(source, conversation, _parts)
        except RenderingError:
            raise error from error.__cause__
        if as_parts.left_out:
            raise
        return as_parts
    if not as_text.left_out:
        return as_text
    try:
        as_parts = _render(source, conversation, _parts)
    except RenderingError:
        return as_text
    return as_parts if len(as_parts.left_out) < len(as_text.left_out) else as_text


def _parts(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


def _render(source: str, conversation: Conversation, content: Content) -> Rendered:
    contents = [text for _, text in conversation.messages]
    text = _rendered(source, conversation, contents, content)
    return Rendered(text, tuple(_left_out(source, conversation, contents, content, text)))


def _left_out(
    source: str, conversation: Conversation, contents: Sequence[str], content: Content, text: str
) -> list[int]:
    stem = "zq" + hashlib.blake2b("\0".join([source, *contents]).encode(), digest_size=6).hexdigest()
    marks = [(f"{stem}a{index}z", f"{stem}b{index}z") for index in range(len(contents))]
    marked = [f"{before}{said}{after}" for said, (before, after) in zip(contents, marks, strict=True)]
    try:
        seen = _rendered(source, conversation, marked, content).lower()
    except RenderingError:  # the template looks into what is said, and does not like the marks
        seen = ""
    words = _words(text)
    return [
        index
        for index, said in enumerate(contents)
        if said.strip()
        and not any(mark in seen for mark in marks[index])
        and not ((len(said) >= _TELLING or not seen) and _words(said) in words)
    ]


def _words(text: str) -> str:
    return " ".join(text.split())


def _rendered(source: str, conversation: Conversation, contents: Sequence[str], content: Content) -> str:
    most = _TIMES * sum(map(len, contents)) + _BESIDE
    roles = [role for role, _ in conversation.messages]
    pieces: list[str] = []
    try:
        template = compile_template(source)
        for piece in template.generate(
            messages=[{"role": role, "content": content(said)} for role, said in zip(roles, contents, strict=True)],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            strftime_now=conversation.clock.strftime,
            **conversation.special_tokens,
        ):
            pieces.append(piece)
            most -= len(piece)
            if most < 0:
                raise RenderingError("it renders far more text than the messages have")
    except RenderingError:
        raise
    except TemplateRefusedError as error:
        raise RenderingError(str(error), refused=True) from error
    except Exception as error:  # a template is a program: it may raise anything
        raise RenderingError(_described(error)) from error
    text = "".join(pieces)
    if not _is_unicode(text):
        raise RenderingError("it renders half a surrogate pair")
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(error: Exception) -> str:
    """An error in one line, with the template's line where that is known."""
    line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else _line_of(error)
    what = " ".join(str(error).split()) or "no reason given"
    kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
    return f"{'' if line is None else f'line {line}: '}{kind}{what}"[:500]


def _line_of(error: Exception) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
