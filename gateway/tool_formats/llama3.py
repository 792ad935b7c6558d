"""The format of Llama 3: the text begins with a JSON object, perhaps after ``<|python_tag|>``. More
calls may follow, each after a semicolon."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.parts import Content, Part, PartReader
from gateway.tool_formats.call_reader import CallReader, after_spaces
from gateway.tool_formats.format import Function, grammar_of_calls

_TAG = "<|python_tag|>"


class Llama3Format:
    """The format of Llama 3."""

    def reader(self) -> PartReader:
        """Return a reader for one answer."""
        return _Llama3Reader()

    def grammar(self, functions: Sequence[Function], *, parallel: bool) -> str:
        """Return a grammar of calls."""
        return grammar_of_calls(
            functions, opening="", key="parameters", closing="", separator="; " if parallel else None
        )


class _Llama3Reader(CallReader):
    """Reads one answer."""

    def __init__(self) -> None:
        super().__init__(self._read_start)

    def after_call(self, text: str, at: int, parts: list[Part]) -> int:
        """Read the semicolon before the next call."""
        at = after_spaces(text, at)
        if at == len(text):
            return at
        if text[at] != ";":
            self.read = self.after_no_call
            return at
        self.undecided = [";"]
        self.read = self._read_object_start
        return at + 1

    def after_no_call(self, text: str, at: int, parts: list[Part]) -> int:
        """Read content, up to the answer's end."""
        parts.append(Content(text[at:]))
        return len(text)

    def _read_start(self, text: str, at: int, parts: list[Part]) -> int:
        """Read the tag, if there is one."""
        begin = after_spaces(text, at)
        self.undecided.append(text[at:begin])
        if text.startswith(_TAG, begin):
            self.undecided.append(_TAG)
            self.read = self._read_object_start
            return begin + len(_TAG)
        if _TAG.startswith(text[begin : begin + len(_TAG)]):
            self.held = text[begin:]
            return len(text)
        self.read = self._read_object_start
        return begin

    def _read_object_start(self, text: str, at: int, parts: list[Part]) -> int:
        """Look whether an object comes."""
        begin = after_spaces(text, at)
        self.undecided.append(text[at:begin])
        if begin == len(text):
            return begin
        if text[begin] == "{":
            self.begin_call()
        else:
            self.give_up([], parts)
            self.read = self.after_no_call
        return begin
