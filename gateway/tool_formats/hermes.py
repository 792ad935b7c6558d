"""The format of Hermes and Qwen: a JSON object between ``<tool_call>`` and ``</tool_call>``, each
on a line of its own. Text may come before."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.parts import Content, Part, PartReader, held_back
from gateway.tool_formats.call_reader import CallReader, after_spaces
from gateway.tool_formats.format import Function, grammar_of_calls

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesFormat:
    """The format of Hermes and Qwen."""

    def reader(self) -> PartReader:
        """Return a reader for one answer."""
        return _HermesReader()

    def grammar(self, functions: Sequence[Function], *, parallel: bool) -> str:
        """Return a grammar of calls."""
        return grammar_of_calls(
            functions,
            opening=f"{_OPEN}\n",
            key="arguments",
            closing=f"\n{_CLOSE}",
            separator="\n" if parallel else None,
        )


class _HermesReader(CallReader):
    """Reads one answer."""

    def __init__(self) -> None:
        super().__init__(self._read_content)

    def after_call(self, text: str, at: int, parts: list[Part]) -> int:
        """Read the mark that ends a call."""
        at = after_spaces(text, at)
        if text.startswith(_CLOSE, at):
            self.read = self._read_spaces
            return at + len(_CLOSE)
        if _CLOSE.startswith(text[at : at + len(_CLOSE)]):
            self.held = text[at:]
            return len(text)
        self.read = self._read_content
        return at

    def after_no_call(self, text: str, at: int, parts: list[Part]) -> int:
        """Go on with content: a call may still come."""
        self.read = self._read_content
        return at

    def _read_content(self, text: str, at: int, parts: list[Part]) -> int:
        """Read up to the mark that begins a call, and the line break before it."""
        mark = text.find(_OPEN, at)
        if mark < 0:
            tail = text[max(at, len(text) - len(_OPEN)) :]
            self.held = tail[len(tail) - (held_back(tail, f"\n{_OPEN}") or held_back(tail, _OPEN)) :]
            begin, end = len(text) - len(self.held), len(text)
        else:
            begin, end = mark - text.startswith("\n", max(at, mark - 1)), mark + len(_OPEN)
            self.undecided = [text[begin:end]]
            self.begin_call()
        if begin > at:
            parts.append(Content(text[at:begin]))
        return end

    def _read_spaces(self, text: str, at: int, parts: list[Part]) -> int:
        """Pass over the spaces after a call."""
        at = after_spaces(text, at)
        if at < len(text):
            self.read = self._read_content
        return at
