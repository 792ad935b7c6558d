"""Reading calls out of a text: what all formats share."""

from __future__ import annotations

from collections.abc import Callable

from gateway.parts import Content, Part
from gateway.tool_formats.call_object import CallObject

State = Callable[[str, int, list[Part]], int]
"""Reads the next characters of a text from a position on, adds the parts, and returns where it
stopped."""


class CallReader:
    """Reads one answer by states. A format says what comes before and after a call's object."""

    def __init__(self, first: State) -> None:
        self.read = first
        """The state that reads the next characters."""
        self.held = ""
        """Characters at the end of the text that may be a part of a mark."""
        self.undecided: list[str] = []
        """Text before, and a part of, an object that may turn out to be no call."""
        self._call = CallObject()

    def feed(self, text: str) -> list[Part]:
        """Return the parts that this text makes certain."""
        parts: list[Part] = []
        text, self.held, at = self.held + text, "", 0
        while at < len(text):
            at = self.read(text, at, parts)
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back."""
        parts: list[Part] = []
        self.give_up([self.held], parts)
        return parts

    def give_up(self, more: list[str], parts: list[Part]) -> None:
        """Let all that is undecided be content, with more text behind it."""
        if rest := "".join([*self.undecided, *more]):
            parts.append(Content(rest))
        self.undecided, self.held = [], ""

    def begin_call(self) -> None:
        """Read an object next."""
        self._call, self.read = CallObject(), self._read_call

    def after_call(self, text: str, at: int, parts: list[Part]) -> int:
        """Read what follows a call. A format defines it."""
        raise NotImplementedError

    def after_no_call(self, text: str, at: int, parts: list[Part]) -> int:
        """Read what follows an object that is no call. A format defines it."""
        raise NotImplementedError

    def _read_call(self, text: str, at: int, parts: list[Part]) -> int:
        end, found = self._call.feed(text, at)
        parts += found
        if self._call.begun:
            self.undecided.clear()
        else:
            self.undecided.append(text[at:end])
        if self._call.failed or (self._call.done and not self._call.begun):
            self.give_up([], parts)
            self.read = self.after_no_call
        elif self._call.done:
            self.read = self.after_call
        return end


def after_spaces(text: str, at: int) -> int:
    """Return the position of the next character that is no space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at
