"""The JSON object of one call, read while it comes.

Formats differ in what is around the object and in the name of the arguments. In all of them the
name may come before or after the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import TypeVar

from gateway.parts import CallArguments, CallStart, Part

_ARGUMENT_KEYS = "arguments", "parameters"

_NO_SPACE = re.compile(r"[^ \t\r\n]")
_IN_STRING = re.compile(r'["\\]')
_IN_CONTAINER = re.compile(r'["{}\[\]]')
_AFTER_SCALAR = re.compile(r"[,}\]: \t\r\n]")

Value = TypeVar("Value")
Reading = Generator[None, None, Value]
"""A rule of the grammar. It yields where the text ends so far, and goes on with the next text."""


class _NoCallError(Exception):
    """The text is no such object."""


class CallObject:
    """A call's JSON object: ``{"name": ..., "arguments": {...}}``. Other members are passed over.

    The call begins with the first character at which its name is whole and its arguments have
    begun. Until then it may turn out to be no call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        """Name of the function, once it is whole."""
        self.begun = False
        self.done = False
        self.failed = False
        """True if this is no such object, or it goes on as none does."""
        self._arguments: list[str] | None = None
        self._text, self._at = "", 0
        self._reading = self._object()

    def feed(self, text: str, at: int) -> tuple[int, list[Part]]:
        """Read from a position on. Return where reading stopped, and the parts."""
        self._text, self._at = text, at
        try:
            next(self._reading)
        except StopIteration:
            self.done = True
        except _NoCallError:
            self.failed = True
        return self._at, self._parts()

    def _parts(self) -> list[Part]:
        parts: list[Part] = []
        if self.name is None or self._arguments is None:
            return parts
        if not self.begun:
            self.begun = True
            parts.append(CallStart(self.name))
        if self._arguments:
            parts.append(CallArguments("".join(self._arguments)))
            self._arguments.clear()
        return parts

    def _object(self) -> Reading[None]:
        yield from self._one_of("{")
        mark = yield from self._one_of('"}')
        while mark == '"':
            key = yield from self._string()
            yield from self._one_of(":")
            yield from self._value(key)
            mark = yield from self._one_of(",}")
            if mark == ",":
                mark = yield from self._one_of('"')

    def _value(self, key: str) -> Reading[None]:
        first = yield from self._next()
        if key == "name":
            yield from self._one_of('"' if self.name is None else "")
            self.name = yield from self._string()
        elif key in _ARGUMENT_KEYS:
            if first != "{" or self._arguments is not None:
                raise _NoCallError
            self._arguments = []
            yield from self._container(self._arguments)
        elif first in "{[":
            yield from self._container(None)
        elif first == '"':
            self._at += 1
            yield from self._to_string_end(None)
        else:
            yield from self._search(_AFTER_SCALAR, None)

    def _next(self) -> Reading[str]:
        """Pass over spaces. Return the character behind them, which is not taken."""
        found = yield from self._search(_NO_SPACE, None)
        return found[0]

    def _one_of(self, characters: str) -> Reading[str]:
        """Pass over spaces and take one of these characters."""
        found = yield from self._next()
        if found not in characters:
            raise _NoCallError
        self._at += 1
        return found

    def _string(self) -> Reading[str]:
        """Take the rest of a string, and return what it says."""
        written: list[str] = ['"']
        yield from self._to_string_end(written)
        try:
            value = str(json.loads("".join(written)))
            value.encode()
        except ValueError:  # no JSON, or half of a surrogate pair
            raise _NoCallError from None
        return value

    def _container(self, kept: list[str] | None) -> Reading[None]:
        """Take an object or a list, up to the bracket that closes it."""
        depth = 0
        while True:
            found = yield from self._search(_IN_CONTAINER, kept)
            self._take(found.end(), kept)
            if found[0] == '"':
                yield from self._to_string_end(kept)
            else:
                depth += 1 if found[0] in "{[" else -1
            if not depth:
                return

    def _to_string_end(self, kept: list[str] | None) -> Reading[None]:
        """Take the rest of a string with its closing quote."""
        while True:
            found = yield from self._search(_IN_STRING, kept)
            self._take(found.end(), kept)
            if found[0] == '"':
                return
            while self._at == len(self._text):
                yield
            self._take(self._at + 1, kept)

    def _search(self, pattern: re.Pattern[str], kept: list[str] | None) -> Reading[re.Match[str]]:
        """Take all up to the next match, which is not taken."""
        while (found := pattern.search(self._text, self._at)) is None:
            self._take(len(self._text), kept)
            yield
        self._take(found.start(), kept)
        return found

    def _take(self, end: int, kept: list[str] | None) -> None:
        if kept is not None and end > self._at:
            kept.append(self._text[self._at : end])
        self._at = end
