"""Server-sent events, as OpenAI sends them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError, fault_error

log = logging.getLogger(__name__)


_DONE = b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """A response of server-sent events. ``on_end`` is called once when it ends, however it ends.
    ``is_marked`` is False if OpenAI's mark of the end does not follow the last event."""

    def __init__(self, events: AsyncIterator[Any], on_end: Callable[[], None], *, is_marked: bool = True) -> None:
        super().__init__(
            _encoded(events, _DONE if is_marked else b""),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _encoded(events: AsyncIterator[Any], mark: bytes) -> AsyncIterator[bytes]:
    """Yield the events, then the mark of the end. An error is an event too, and the last one."""
    try:
        async for event in events:
            yield _event(event)
    except ApiError as error:
        yield _event(error.body())
    except Exception as error:
        log.exception("a stream failed")
        yield _event(fault_error(error).body())
    else:
        yield mark


def _event(content: Any) -> bytes:
    """Return an event. One that has a type is named by it."""
    kind = content.get("type") if isinstance(content, dict) else None
    name = b"" if kind is None else f"event: {kind}\n".encode()
    return name + b"data: " + to_json(content) + b"\n\n"
