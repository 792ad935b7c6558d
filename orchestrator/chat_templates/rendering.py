"""The rendering of a conversation, which also finds messages that the template leaves out. Pure.

A template that takes a message's content as a list of parts loses a plain string, and some
templates skip a role. Both render without an error. So each conversation is rendered a second time,
with marks around each content. A message without a mark in the result is left out, unless its words
are in the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from orchestrator.chat_templates.calls import forms_of_calls, groups_of_calls, without_calls
from orchestrator.chat_templates.environment import (
    Part,
    TemplateRefusedError,
    compile_template,
    described,
    variables_of,
)
from orchestrator.chat_templates.marks import Marks, places

_TELLING = 8
"""Shortest content, in characters, whose words in the prompt prove that it is there."""

_TIMES, _EACH, _BESIDE = 8, 1024, 2**18
"""Limit of a rendered prompt in characters: a multiple of the messages' characters, a number for
each message, and a fixed number."""

_MOST_NAMED = 64
"""Most left-out messages that are named. Each takes a search through the whole prompt."""

_RESERVED = {"messages", "add_generation_prompt", "strftime_now"}
"""Variables of a template that only the server sets."""

CALLS = ".tool_calls"
"""End of the name of calls that a template does not read."""

Content = Callable[[str], Any]
"""The form in which a template takes a message's content."""


class RenderingError(Exception):
    """The template cannot be compiled or rendered.

    ``refused`` if the template itself refuses the messages, ``limited`` if it needs more time,
    memory or text than it may.
    """

    def __init__(self, what: str, *, refused: bool = False, limited: bool = False) -> None:
        super().__init__(what)
        self.refused = refused
        self.limited = limited


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input of a template: messages, the special tokens by name, and its clock.

    A message has a ``role``, a ``content``, which is a string or None, and perhaps ``tool_calls``
    and a ``tool_call_id``, as templates read them.
    """

    messages: Sequence[Mapping[str, Any]]
    special_tokens: dict[str, str]
    clock: datetime
    add_generation_prompt: bool = True
    """True to end with what opens the model's answer."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template by name, ``tools`` among them."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and the places of the messages in it."""

    text: str
    left_out: tuple[int, ...]
    """Indices of the first messages that are not in the prompt."""
    places: tuple[int | None, ...]
    """Start of each message's content, after spaces; None if that is not known."""
    unread: tuple[str, ...] = ()
    """Names of what is given and not read: variables, ``tools`` among them, and calls such as
    ``messages[1].tool_calls``, where the first message of its kind stands for all."""


def render(source: str, conversation: Conversation) -> Rendered:
    """Render the prompt, as a rule up to the start of the answer. RenderingError if that fails.

    A content is a string, or a list of parts if the template loses strings. Calls of tools have the
    form of which the template reads most.
    """
    best: Rendered | None = None
    first_error: RenderingError | None = None
    for messages in forms_of_calls(conversation.messages):
        try:
            rendered = _with_unread(source, replace(conversation, messages=messages))
        except RenderingError as error:
            first_error = first_error or error
            continue
        if best is None or _unread_calls(rendered) < _unread_calls(best):
            best = rendered
        if not _unread_calls(best):
            break
    if best is None:
        assert first_error is not None
        raise first_error
    return best


def _unread_calls(rendered: Rendered) -> int:
    return sum(name.endswith(CALLS) for name in rendered.unread)


def _with_unread(source: str, conversation: Conversation) -> Rendered:
    rendered = _rendered_well(source, conversation)
    return replace(rendered, unread=tuple(_unread(source, conversation, rendered.text)))


def _unread(source: str, conversation: Conversation, text: str) -> Iterable[str]:
    """Yield what is given and not read. What a template names it may still not use, so tools and
    calls are left out for once: that must change the text."""
    known = variables_of(source) - _RESERVED - set(conversation.special_tokens)
    yield from (name for name in conversation.variables if name not in known and name != "tools")
    without: dict[str, Conversation] = {}
    if conversation.variables.get("tools"):
        without["tools"] = replace(conversation, variables={**conversation.variables, "tools": None})
    for group in groups_of_calls(conversation.messages):
        messages = without_calls(conversation.messages, group)
        without[f"messages[{min(group)}]{CALLS}"] = replace(conversation, messages=messages)
    for name, less in without.items():
        try:
            is_read = _rendered_well(source, less).text != text
        except RenderingError:  # the template needs them
            is_read = True
        if not is_read:
            yield name


def _rendered_well(source: str, conversation: Conversation) -> Rendered:
    """Render the prompt in the form in which the template loses the fewest messages."""
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


def _parts(content: str) -> list[Part]:
    return [Part(content)]


def _render(source: str, conversation: Conversation, content: Content) -> Rendered:
    contents = [said["content"] or "" for said in conversation.messages]
    text = _rendered(source, conversation, contents, content)
    marks = Marks(source, contents)
    silent = {index for index, said in enumerate(conversation.messages) if "tool_calls" in said and not said["content"]}
    marked_contents = ["" if index in silent else marks.around(index) for index in range(len(contents))]
    try:
        marked = _rendered(source, conversation, marked_contents, content)
    except RenderingError:  # the template looks into what is said, and does not like the marks
        marked = ""
    found = marks.find(marked)
    seen = {mark.index for mark in found}
    unseen = [index for index, said in enumerate(contents) if index not in seen and said.strip()]
    left_out, doubtful = _left_out(unseen, contents, text, _TELLING if marked else 0)
    if doubtful:
        changed = [marks.around(index) if index in doubtful else said for index, said in enumerate(contents)]
        if not _changes(source, conversation, changed, content, text):
            left_out = sorted([*left_out, *doubtful])
    return Rendered(text, tuple(left_out), tuple(places(found, marked, text, len(contents))))


def _left_out(unseen: Iterable[int], contents: Sequence[str], text: str, telling: int) -> tuple[list[int], set[int]]:
    """Return the messages whose words are not in the text, and those whose words are there but are
    too short to prove it."""
    left_out: list[int] = []
    doubtful: set[int] = set()
    words, at = "", 0
    for index in unseen:
        words = words or _words(text)
        said = _words(contents[index])
        begin = words.find(said, at)
        if begin < 0:
            begin = words.find(said, 0, at + len(said))  # templates may change the order
        if begin < 0:
            left_out.append(index)
            if len(left_out) == _MOST_NAMED:
                break
            continue
        at = begin + len(said)
        if len(contents[index]) < telling:
            doubtful.add(index)
    return left_out, doubtful


def _changes(source: str, conversation: Conversation, contents: Sequence[str], content: Content, text: str) -> bool:
    """Return True if different contents make a different text. Then the template does not leave
    them out."""
    try:
        return _rendered(source, conversation, contents, content) != text
    except RenderingError:
        return True


def _words(text: str) -> str:
    return " ".join(text.split())


def _rendered(source: str, conversation: Conversation, contents: Sequence[str], content: Content) -> str:
    most = _TIMES * sum(map(len, contents)) + _EACH * len(contents) + _BESIDE
    variables = dict(conversation.variables)
    beside = [variables, *(said.get("tool_calls") for said in conversation.messages)]
    most += _TIMES * sum(len(json.dumps(each)) for each in beside if each)
    pieces: list[str] = []
    try:
        template = compile_template(source)
        for piece in template.generate(
            **{"tools": None, "documents": None, **variables},
            messages=[
                {**message, "content": None if message["content"] is None else content(said)}
                for message, said in zip(conversation.messages, contents, strict=True)
            ],
            add_generation_prompt=conversation.add_generation_prompt,
            strftime_now=conversation.clock.strftime,
            **conversation.special_tokens,
        ):
            pieces.append(piece)
            most -= len(piece)
            if most < 0:
                raise RenderingError("it renders far more text than the messages have", limited=True)
    except RenderingError:
        raise
    except TemplateRefusedError as error:
        raise RenderingError(str(error), refused=True) from error
    except Exception as error:  # a template is a program: it may raise anything
        raise RenderingError(described(error), limited=isinstance(error, MemoryError)) from error
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
