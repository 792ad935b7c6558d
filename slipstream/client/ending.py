"""What both clients do at a reply's early end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slipstream.errors import Code
from slipstream.reasons import Reason
from slipstream.rpc.status import PeerError

FAREWELL_SECONDS = 2.0
"""Most time that leaving a reply takes."""
SUCCESSION_SECONDS = 30.0
"""Most time that a session waits for the end of a reply that was left before it sends the next
message."""


def reply_closed() -> PeerError:
    """What reading a reply brings after it was closed."""
    return PeerError(Code.CANCELLED, Reason.REPLY_CLOSED, "the reply was left before its end")


class EndingCall(Protocol):
    """A stream whose last event has come."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Have it called with this once the stream has ended."""


def keep_until_done(call: EndingCall) -> None:
    """Let a stream end by itself. Nobody waits for that: the turn has ended, and the server is a
    moment behind with its status. But a call that nobody holds is cancelled, and its server would
    be told that the client has left."""
    call.add_done_callback(_let_go)


def _let_go(call: object) -> None:
    """A call holds who is to be told, and so is held until then."""
