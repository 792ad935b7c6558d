"""A turn in progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from types import TracebackType

from slipstream.client.blocking.watcher import Watcher
from slipstream.client.results import Delta, Result


class Reply:
    """One turn in progress: iterate over its text; ``result`` is whole once the iteration has ended.

    Leaving early ends the turn at the server: a ``break`` out of the loop, an exception in it, ``close``, the end of a ``with``
    block, or dropping the last reference. What the turn has said so far stays in its session. A reply that ``watch`` gave only
    looks on: leaving it leaves the turn alone, and so does ``detach``. A lost connection is made anew and goes on where it was.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    @property
    def result(self) -> Result:
        """As far as it has come."""
        return self._watcher.watching.turns[0].result

    @property
    def request_id(self) -> str:
        """Sent again with the same content, the server knows the turn by it. Empty if the reply only looks on."""
        return self._watcher.watching.request_id

    def deltas(self) -> Generator[Delta, None, None]:
        """Text with its tokens, as they come. PeerError if the turn fails, or the server is gone for too long."""
        try:
            while (delta := self._watcher.next_delta()) is not None:
                yield delta
        finally:
            self._watcher.end()

    def __iter__(self) -> Iterator[str]:
        with contextlib.closing(self.deltas()) as deltas:
            for delta in deltas:
                if delta.text:
                    yield delta.text

    def wait(self) -> Result:
        """Run to the end and return the result. PeerError as for ``deltas``."""
        for _ in self.deltas():
            pass
        return self.result

    def cancel(self, *, timeout: float | None = None) -> None:
        """End the turn early; the iteration goes on to its last events, and it then has finished as CANCELLED. Callable from
        another thread. PeerError if the server cannot be told."""
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
        if self._watcher.running:  # a collector may run anywhere, in grpc's own locks too: not here
            with contextlib.suppress(RuntimeError):  # no threads any more
                threading.Thread(target=self._watcher.end, name="slipstream-farewell", daemon=True).start()
