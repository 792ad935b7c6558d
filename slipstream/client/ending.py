"""The early end of a reply, for both clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError

FAREWELL_SECONDS = 2.0
"""Most seconds that leaving a reply takes."""
SUCCESSION_SECONDS = 30.0
"""Most seconds that a session waits for the end of a reply that was left, before it sends the
next message."""


def reply_closed() -> PeerError:
    """Return the error of reading a reply that was closed."""
    return PeerError(Code.CANCELLED, Reason.REPLY_CLOSED, "the reply was closed before its end")


class EndingCall(Protocol):
    """A stream whose last event has come."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call ``callback`` with this call once the stream has ended."""


def keep_until_done(call: EndingCall) -> None:
    """Let a stream end by itself, a moment after its turn: the server still sends its status.

    A call without references is cancelled, and its server would learn that the client has left. So
    the callback holds a reference until the stream ends.
    """
    call.add_done_callback(_let_go)


def _let_go(call: object) -> None:
    """Do nothing: the call holds this function, and is itself held, until it ends."""
