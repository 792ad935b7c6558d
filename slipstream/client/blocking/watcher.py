"""Reads a turn's events over one stream after another, from any thread, and ends the turn if it is
left early."""

from __future__ import annotations

import contextlib
import sys
import threading

import grpc

from slipstream.client.blocking.connection import Connection
from slipstream.client.ending import FAREWELL_SECONDS, keep_until_done, reply_closed
from slipstream.client.results import Delta
from slipstream.client.watching import Watching
from slipstream.rpc.status import PeerError, StreamLostError, error_of_call

_LOOK_SECONDS = 0.05
"""How often one who wants to cancel looks whether another thread has read which turn it is."""


class Watcher:
    """The blocking shell of a Watching. Its stream has begun when this is made."""

    def __init__(self, connection: Connection, watching: Watching) -> None:
        self.watching = watching
        self._connection = connection
        self._reading = threading.Lock()
        self._starting = threading.Lock()
        self._ending = threading.Lock()
        self._closed = threading.Event()
        self._forgotten = False
        self._call = connection.watch(watching)
        connection.running.add(self)

    @property
    def running(self) -> bool:
        """Whether there are events to come."""
        return not (self.watching.ended or self.watching.refused or self._closed.is_set())

    def next_delta(self) -> Delta | None:
        """What comes next; None at the end. PeerError if the turn failed, cannot be watched, or was
        left."""
        with self._reading:
            while not self.watching.deltas:
                if self.watching.ended:
                    if error := self.watching.error():
                        raise error
                    return None
                self._receive()
            return self.watching.deltas.popleft()

    def cancel(self, timeout: float | None) -> None:
        """End the turns early; their last events still come. PeerError if the server cannot be
        told."""
        while self.running and not self.watching.known:
            if self._reading.acquire(
                timeout=_LOOK_SECONDS
            ):  # nobody else reads: what comes first says which turn it is
                try:
                    self._receive()
                finally:
                    self._reading.release()
        if self.running:
            for request in self.watching.cancellations():
                self._connection.call(self._connection.stub.CancelTurn, request, self._connection.attempts(timeout))

    def end(self, patience: float = FAREWELL_SECONDS, *, cancelling: bool = True) -> None:
        """Watch no more, and end the turns at the server if they are ours and still run. Never
        raises; returns when whoever called first is done."""
        with self._ending:
            if not self._closed.is_set():
                cancelling = cancelling and self.running and self.watching.owned
                self._closed.set()
                if not self.watching.ended:
                    with self._starting:
                        self._call.cancel()
                if cancelling:
                    self._connection.cancel_turns(self.watching, patience)
            self._connection.running.discard(self)

    def forget(self) -> None:
        """Nobody holds it any more. Whoever finds that out may do so anywhere, a collector of
        garbage even inside grpc's locks and in `end` itself: so it ends elsewhere, a moment
        later."""
        if self.running and not self._forgotten and not sys.is_finalizing():  # by then no thread would begin
            self._forgotten = True
            with contextlib.suppress(RuntimeError):  # none can be had
                threading.Thread(target=self.end, name="slipstream-farewell").start()

    def _receive(self) -> None:
        """Take one event in, or begin another stream."""
        if self._closed.is_set() or self._forgotten:
            raise reply_closed()
        try:
            self.watching.take(next(self._call))
            if self.watching.ended:
                keep_until_done(self._call)
            return
        except StopIteration:
            lost: PeerError = StreamLostError("the server ended the stream before the turn's end")
        except StreamLostError as gap:
            lost = gap
        except grpc.RpcError as error:
            if self.watching.ended:
                return
            lost = error_of_call(error)  # type: ignore[arg-type]
        self._begin_again(lost)

    def _begin_again(self, lost: PeerError) -> None:
        if self._closed.is_set():
            raise reply_closed()
        delay = self.watching.lost(lost)
        self._call.cancel()
        if self._closed.wait(delay):
            raise reply_closed()
        with self._starting:
            if not self._closed.is_set():
                self._call = self._connection.watch(self.watching)
