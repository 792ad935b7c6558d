"""The output of a response: an answer's text becomes items, and the events that tell of them.

An item opens, grows and closes, each with its events. Events have no numbers yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from gateway.responses.ids import TurnId

Event = dict[str, Any]
Logprobs = Sequence[dict[str, Any]]


class OutputItem(Protocol):
    """An item that is being written."""

    def begin(self) -> Iterator[Event]:
        """Yield the events of its beginning."""

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of its end."""

    def item(self, status: str) -> dict[str, Any]:
        """Return the item as it is."""


class MessageItem:
    """A message of the assistant, with one part of text."""

    def __init__(self, turn: TurnId, index: int) -> None:
        self._id = turn.item_id("msg", index)
        self._index = index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def begin(self) -> Iterator[Event]:
        """Yield the events of its beginning."""
        yield {"type": "response.output_item.added", "output_index": self._index, "item": self._item("in_progress", [])}
        yield {"type": "response.content_part.added", **self._place, "part": _part("", [])}

    def grow(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        """Add text, with the log-probabilities of its tokens. Yields the event that tells it."""
        self._texts.append(text)
        self._logprobs += logprobs
        yield {"type": "response.output_text.delta", **self._place, "delta": text, "logprobs": logprobs}

    def note_logprobs(self, logprobs: Logprobs) -> None:
        """Add log-probabilities of tokens without text, such as the end token."""
        self._logprobs += logprobs

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of its end."""
        text = "".join(self._texts)
        yield {"type": "response.output_text.done", **self._place, "text": text, "logprobs": self._logprobs}
        yield {"type": "response.content_part.done", **self._place, "part": _part(text, self._logprobs)}
        yield {"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}

    def item(self, status: str) -> dict[str, Any]:
        """Return the message as it is."""
        return self._item(status, [_part("".join(self._texts), self._logprobs)])

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": content}


class Output:
    """Writes one answer as items."""

    def __init__(self, turn: TurnId) -> None:
        self._turn = turn
        self._closed: list[dict[str, Any]] = []
        self._open: MessageItem | None = None
        self._waiting: list[dict[str, Any]] = []
        """Log-probabilities of tokens whose text is held back."""

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items that are complete."""
        return self._closed

    def text(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        """Add text of the message."""
        self._waiting += logprobs
        if not text:
            return
        if self._open is None:
            self._open = MessageItem(self._turn, len(self._closed))
            yield from self._open.begin()
        told, self._waiting = self._waiting, []
        yield from self._open.grow(text, told)

    def end(self, status: str) -> Iterator[Event]:
        """End the answer. An answer without text is an empty message."""
        if self._open is None:
            self._open = MessageItem(self._turn, len(self._closed))
            yield from self._open.begin()
        self._open.note_logprobs(self._waiting)
        yield from self._open.end(status)
        self._closed.append(self._open.item(status))
        self._open = None


def _part(text: str, logprobs: Logprobs) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
