"""Iteration over a reply by threads. Written by hand, as its counterpart in ``aio`` is.

A reply that is dropped ends its turn. A generator could not do that safely: the garbage collector
may finish it inside a lock that its end waits for.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator

from slipstream.client.blocking.watcher import Watcher
from slipstream.client.results import Delta

_forgotten: weakref.WeakSet[Watcher] = weakref.WeakSet()


class Deltas(Iterator[Delta]):
    """A reply's text with its tokens, as they come. It ends the turn if it is closed before its
    end, or dropped."""

    def __init__(self, reply: Readable, watcher: Watcher) -> None:
        self._reply = reply  # it lives as long, or dropping it would end the turn
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
        self._watcher.stop_watching()

    def __del__(self) -> None:
        _forget(self._watcher)


class Readable:
    """The part of a reply that is iterated over."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def deltas(self) -> Deltas:
        """Iterate over the text with its tokens, as they come. PeerError if the turn fails, or the
        server is gone for too long."""
        return Deltas(self, self._watcher)

    def __iter__(self) -> Iterator[str]:
        return (delta.text for delta in self.deltas() if delta.text)

    def __del__(self) -> None:
        _forget(self._watcher)


def _forget(watcher: Watcher) -> None:
    """Stop a watcher that no part of the program refers to any more.

    The collector of garbage may call this anywhere, even inside grpc's locks and in `stop_watching`
    itself. So the watcher stops in another thread, a moment later.
    """
    if watcher.running and watcher not in _forgotten and not sys.is_finalizing():  # by then no thread would begin
        _forgotten.add(watcher)
        with contextlib.suppress(RuntimeError):  # no thread can be had
            threading.Thread(target=watcher.stop_watching, name="slipstream-farewell").start()
