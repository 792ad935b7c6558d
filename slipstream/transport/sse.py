"""Server-sent events, as far as OpenAI's API uses them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class EventParser:
    """Splits a stream into the data of its events. Other fields and comments are passed over."""

    _rest: bytes = b""
    _data: list[str] = field(default_factory=list)

    def feed(self, part: bytes) -> Iterator[str]:
        """Yield the data of the events that end in this part. A line may end with a carriage
        return."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").decode(errors="replace")
            if text.startswith("data:"):
                self._data.append(text.removeprefix("data:").removeprefix(" "))
            elif not text and self._data:
                yield "\n".join(self._data)
                self._data.clear()
