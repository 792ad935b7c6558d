"""The output of a response: the parts of an answer become items, and the events that tell of them.

An item opens, grows and closes, each with its events. Events have no numbers yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.parts import CallArguments, CallStart, Content, Part, Reasoning
from gateway.responses.ids import TurnId

Event = dict[str, Any]
Logprobs = Sequence[dict[str, Any]]


class OutputItem:
    """An item that is being written."""

    prefix = ""
    """Prefix of the ids of such items."""

    def __init__(self, turn: TurnId, index: int) -> None:
        self._id = turn.item_id(self.prefix, index)
        self._index = index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def begin(self) -> Iterator[Event]:
        """Yield the events of its beginning."""
        yield {"type": "response.output_item.added", "output_index": self._index, "item": self._item("in_progress")}

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of its end."""
        yield {"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}

    def item(self, status: str) -> dict[str, Any]:
        """Return the item as it is."""
        return self._item(status)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}

    def _item(self, status: str) -> dict[str, Any]:
        """Return the item without what it has grown by."""
        raise NotImplementedError


class TextItem(OutputItem):
    """An item with one part of text."""

    kind = ""
    """The name of the text in events."""

    def begin(self) -> Iterator[Event]:
        """Yield the events of its beginning."""
        yield from super().begin()
        yield {"type": "response.content_part.added", **self._place, "part": self._part("")}

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of its end."""
        yield {"type": f"response.{self.kind}.done", **self._place, "text": self.text, **self._told()}
        yield {"type": "response.content_part.done", **self._place, "part": self._part(self.text)}
        yield from super().end(status)

    def item(self, status: str) -> dict[str, Any]:
        """Return the item as it is."""
        return {**self._item(status), "content": [self._part(self.text)]}

    @property
    def _place(self) -> dict[str, Any]:
        return {**super()._place, "content_index": 0}

    def _told(self) -> dict[str, Any]:
        """Return what the event of the whole text tells besides."""
        return {}

    def _part(self, text: str) -> dict[str, Any]:
        raise NotImplementedError


class ReasoningItem(TextItem):
    """The reasoning before an answer."""

    prefix, kind = "rs", "reasoning_text"

    def grow(self, text: str) -> Iterator[Event]:
        """Add text. Yields the event that tells it."""
        self._texts.append(text)
        yield {"type": "response.reasoning_text.delta", **self._place, "delta": text}

    def _item(self, status: str) -> dict[str, Any]:
        return {"id": self._id, "type": "reasoning", "status": status, "summary": [], "content": []}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}


class MessageItem(TextItem):
    """A message of the assistant."""

    prefix, kind = "msg", "output_text"

    def __init__(self, turn: TurnId, index: int) -> None:
        super().__init__(turn, index)
        self._logprobs: list[dict[str, Any]] = []

    def grow(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        """Add text, with the log-probabilities of its tokens. Yields the event that tells it."""
        self._texts.append(text)
        self._logprobs += logprobs
        yield {"type": "response.output_text.delta", **self._place, "delta": text, "logprobs": logprobs}

    def note_logprobs(self, logprobs: Logprobs) -> None:
        """Add log-probabilities of tokens without text, such as the end token."""
        self._logprobs += logprobs

    def _told(self) -> dict[str, Any]:
        return {"logprobs": self._logprobs}

    def _item(self, status: str) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": []}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs if text else []}


class CallItem(OutputItem):
    """A call of a tool."""

    prefix = "fc"

    def __init__(self, turn: TurnId, index: int, name: str) -> None:
        super().__init__(turn, index)
        self._name = name
        self._call_id = turn.item_id("call", index)

    def grow(self, arguments: str) -> Iterator[Event]:
        """Add characters of the arguments. Yields the event that tells them."""
        self._texts.append(arguments)
        yield {"type": "response.function_call_arguments.delta", **self._place, "delta": arguments}

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of its end."""
        told = {"arguments": self.text, "name": self._name}
        yield {"type": "response.function_call_arguments.done", **self._place, **told}
        yield from super().end(status)

    def item(self, status: str) -> dict[str, Any]:
        """Return the call as it is."""
        return {**self._item(status), "arguments": self.text}

    def _item(self, status: str) -> dict[str, Any]:
        call = {"call_id": self._call_id, "name": self._name, "arguments": ""}
        return {"id": self._id, "type": "function_call", "status": status, **call}


class Output:
    """Writes one answer as items."""

    def __init__(self, turn: TurnId) -> None:
        self.items: list[dict[str, Any]] = []
        """The items that are complete."""
        self._turn = turn
        self._open: OutputItem | None = None
        self._waiting: list[dict[str, Any]] = []
        """Log-probabilities of tokens whose text is held back."""

    def feed(self, parts: Sequence[Part], logprobs: Logprobs) -> Iterator[Event]:
        """Add parts of the answer, with the log-probabilities of their tokens. Yields events."""
        self._waiting += logprobs
        for part in parts:
            told, self._waiting = self._waiting, []
            match part:
                case Content(text):
                    yield from self._open_kind(MessageItem)
                    assert isinstance(self._open, MessageItem)
                    yield from self._open.grow(text, told)
                case Reasoning(text):
                    yield from self._open_kind(ReasoningItem)
                    assert isinstance(self._open, ReasoningItem)
                    yield from self._open.grow(text)
                case CallStart(name):
                    yield from self._begin(CallItem(self._turn, self._next, name))
                case CallArguments(text):
                    assert isinstance(self._open, CallItem)
                    yield from self._open.grow(text)

    def end(self, status: str) -> Iterator[Event]:
        """End the answer. One that has nothing is an empty message."""
        if self._open is None:
            yield from self._open_kind(MessageItem)
        if isinstance(self._open, MessageItem):
            self._open.note_logprobs(self._waiting)
        yield from self._close(status)

    @property
    def _next(self) -> int:
        return len(self.items) + (self._open is not None)

    def _open_kind(self, kind: type[MessageItem] | type[ReasoningItem]) -> Iterator[Event]:
        """Begin an item unless one of its kind is open."""
        if not isinstance(self._open, kind):
            yield from self._begin(kind(self._turn, self._next))

    def _begin(self, item: OutputItem) -> Iterator[Event]:
        """Close the open item and begin another."""
        yield from self._close("completed")
        self._open = item
        yield from item.begin()

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self.items.append(self._open.item(status))
            self._open = None
