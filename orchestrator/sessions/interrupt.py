"""Ending a wait because something happened, as `asyncio.timeout` ends one because time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupt:
    """Watches an event until it is closed: once the event is set, what runs inside `during` ends.

    One task watches for a whole turn; a task for each round would cost as much as the round's own messages.
    """

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._inside: asyncio.Task[object] | None = None
        self._watcher = asyncio.create_task(event.wait())
        self._watcher.add_done_callback(self._fire)

    def close(self) -> None:
        """Watch no longer."""
        self._watcher.remove_done_callback(self._fire)
        self._watcher.cancel()

    @property
    def happened(self) -> bool:
        """Whether the event is set."""
        return self._event.is_set()

    @contextmanager
    def during(self) -> Iterator[None]:
        """What awaits inside is cancelled when the event is set, and the context ends quietly; ask `happened` then."""
        task = asyncio.current_task()
        assert task is not None, "there is no task to interrupt"
        before = task.cancelling()
        self._inside = task
        try:
            yield
        except asyncio.CancelledError:
            # Ours, unless somebody else wants the task to end as well.
            if not self.happened or task.uncancel() > before:
                raise
        finally:
            self._inside = None

    def _fire(self, _: asyncio.Task[bool]) -> None:
        if self._inside is not None:
            self._inside.cancel()
