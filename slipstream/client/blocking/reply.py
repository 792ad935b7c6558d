"""A turn in progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from slipstream.client.blocking.watcher import Watcher
from slipstream.client.results import Delta, Result


class Deltas(Iterator[Delta]):
    """A reply's text with its tokens, as they come. Left before its end, by ``close`` or for good,
    it ends the turn."""

    def __init__(self, reply: Reply, watcher: Watcher) -> None:
        self._reply = reply  # lives as long: it is not left by those who hold but this
        self._watcher = watcher
        self._over = False

    def __next__(self) -> Delta:
        """PeerError if the turn fails, or the server is gone for too long."""
        if self._over:
            raise StopIteration
        delta = None
        try:
            delta = self._watcher.next_delta()
        finally:
            if delta is None:
                self.close()
        if delta is None:
            raise StopIteration
        return delta

    def close(self) -> None:
        """Read no further. The turn ends, if the reply does not only look on."""
        self._over = True
        self._watcher.end()

    def __del__(self) -> None:
        self._watcher.forget()


class Reply:
    """One turn in progress: iterate over its text; ``result`` is whole once the iteration has
    ended.

    Leaving early ends the turn at the server: ``close``, the end of a ``with`` block, or, a moment
    later, a ``break`` out of the loop, an exception in it, or dropping the last reference. What the
    turn has said so far stays in its session. A reply that ``watch`` gave only looks on: leaving it
    leaves the turn alone, and so does ``detach``. A lost connection is made anew and goes on where
    it was.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    @property
    def result(self) -> Result:
        """As far as it has come."""
        return self._watcher.watching.turns[0].result

    @property
    def request_id(self) -> str:
        """Sent again with the same content, the server knows the turn by it. Empty if the reply
        only looks on."""
        return self._watcher.watching.request_id

    def deltas(self) -> Deltas:
        """Text with its tokens, as they come. PeerError if the turn fails, or the server is gone
        for too long."""
        return Deltas(self, self._watcher)

    def __iter__(self) -> Iterator[str]:
        return (delta.text for delta in self.deltas() if delta.text)

    def wait(self) -> Result:
        """Run to the end and return the result. PeerError as for ``deltas``."""
        with contextlib.closing(self.deltas()) as deltas:
            for _ in deltas:
                pass
        return self.result

    def cancel(self, *, timeout: float | None = None) -> None:
        """End the turn early; the iteration goes on to its last events, and it then has finished as
        CANCELLED. Callable from another thread. PeerError if the server cannot be told."""
        self._watcher.cancel(timeout)

    def detach(self) -> None:
        """Read no further, and let the turn run on: ``watch`` takes it up again."""
        self._watcher.end(cancelling=False)

    def close(self) -> None:
        """Read no further. The turn ends, if the reply does not only look on."""
        self._watcher.end()

    def __enter__(self) -> Reply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._watcher.forget()
