# Generated from aio/reply.py by tools/make_blocking_client.py. Edit that module.
"""A turn in progress."""

from __future__ import annotations

import contextlib
from types import TracebackType

from slipstream.client.blocking.reading import Readable
from slipstream.client.results import Result


class Reply(Readable):
    """A turn in progress: iterate over its text. ``result`` is complete once the iteration ends.

    Leaving a reply early ends its turn at the server. That is ``close``, the end of a ``with`` or
    ``async with`` block, or, a moment later, a ``break`` out of the loop, an exception in it, or a
    task's cancellation. `Reply` ends its turn also when its last reference is dropped. What the
    turn has said so far stays in its session.

    A reply that ``watch`` gave only looks on: leaving it does not end the turn. Neither does
    ``detach``. A lost connection is made again, and the reply continues where it was.
    """

    @property
    def result(self) -> Result:
        """The result as far as it has come."""
        return self._watcher.watching.turns[0].result

    @property
    def results(self) -> list[Result]:
        """The results of all answers that the request asked for, as far as they have come."""
        return [turn.result for turn in self._watcher.watching.turns]

    @property
    def request_id(self) -> str:
        """The request's id. Sent again with the same content, the server knows the turn by it.
        Empty if the reply only looks on."""
        return self._watcher.watching.request_id

    def begin(self) -> None:
        """Wait until the server has admitted the request and begun its turns. PeerError if it
        refuses them."""
        self._watcher.wait_until_begun()

    def wait(self) -> Result:
        """Read to the end and return the result. PeerError as for ``deltas``."""
        with contextlib.closing(self.deltas()) as deltas:
            for _ in deltas:
                pass
        return self.result

    def cancel(self, *, timeout: float | None = None) -> None:
        """End the turn early. The iteration continues to the turn's last events; the turn has then
        finished as CANCELLED.

        Another task or thread than the reader's may call it. PeerError if the server cannot be
        told.
        """
        self._watcher.cancel_turns(timeout)

    def detach(self) -> None:
        """Read no further, and let the turn run on: ``watch`` takes it up again."""
        self._watcher.stop_watching(cancelling=False)

    def close(self) -> None:
        """Read no further. The turn ends, if the reply does not only look on."""
        self._watcher.stop_watching()

    def __enter__(self) -> Reply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
