"""Splitting reasoning off an answer: the text between ``<think>`` and ``</think>``."""

from __future__ import annotations

from gateway.parts import Part, PartReader, Reasoning, held_back

_OPEN, _CLOSE = "<think>", "</think>"


class ReasoningReader:
    """Reads one answer that may begin with reasoning. What follows goes to another reader. The line
    breaks beside the marks belong to the marks."""

    def __init__(self, then: PartReader, *, is_open: bool) -> None:
        """``is_open`` if the answer begins with reasoning even without ``<think>``, which the
        prompt may have."""
        self._then = then
        self._is_open = is_open
        self._held = ""
        """Characters that may be a part of a mark."""
        self._spaces: list[str] = []
        """Spaces before ``<think>``, which are content if it does not come."""
        self._read = self._read_start
        self._passes_breaks = True
        self._length = 0
        self.reasons = False
        """True once the answer has begun with reasoning."""
        self.closed_at: int | None = None
        """Number of characters up to the end of ``</think>``, once it has come."""

    def feed(self, text: str) -> list[Part]:
        """Return the parts that this text makes certain."""
        self._length += len(text)
        text, self._held = self._held + text, ""
        return self._read(text)

    def finish(self) -> list[Part]:
        """Return what was held back."""
        held, self._held = self._held, ""
        if self.closed_at is not None:
            return self._then.finish()
        if self.reasons or self._is_open:
            self.reasons = self.reasons or bool(held)
            return [Reasoning(held)] if held else []
        return [*self._then.feed(self._taken_spaces() + held), *self._then.finish()]

    def _read_start(self, text: str) -> list[Part]:
        begin = len(text) - len(text.lstrip())
        self._spaces.append(text[:begin])
        text = text[begin:]
        if _OPEN.startswith(text[: len(_OPEN)]) and len(text) < len(_OPEN):
            self._held = text
            return []
        is_marked = text.startswith(_OPEN)
        if is_marked or self._is_open:
            self.reasons = True
            self._read = self._read_reasoning
            return self._read(text[len(_OPEN) :] if is_marked else text)
        self._read = self._then.feed
        return self._then.feed(self._taken_spaces() + text)

    def _read_reasoning(self, text: str) -> list[Part]:
        text = self._without_breaks(text)
        mark = text.find(_CLOSE)
        if mark < 0:
            tail = text[-len(_CLOSE) :]
            self._held = tail[len(tail) - (held_back(tail, f"\n{_CLOSE}") or held_back(tail, _CLOSE)) :]
            said = text[: len(text) - len(self._held)]
            return [Reasoning(said)] if said else []
        said, rest = text[:mark].removesuffix("\n"), text[mark + len(_CLOSE) :]
        parts: list[Part] = [Reasoning(said)] if said else []
        self.closed_at = self._length - len(rest)
        self._passes_breaks = True
        self._read = self._read_answer
        return [*parts, *self._read(rest)]

    def _read_answer(self, text: str) -> list[Part]:
        return self._then.feed(self._without_breaks(text))

    def _taken_spaces(self) -> str:
        spaces, self._spaces = "".join(self._spaces), []
        return spaces

    def _without_breaks(self, text: str) -> str:
        """Return the text without the line breaks right behind a mark."""
        if self._passes_breaks:
            text = text.lstrip("\n")
            self._passes_breaks = not text
        return text
