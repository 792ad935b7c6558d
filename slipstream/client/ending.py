"""What both clients do at a reply's early end."""

from __future__ import annotations

from slipstream.errors import Code
from slipstream.rpc.status import PeerError

FAREWELL_SECONDS = 2.0
"""Most time that leaving a reply takes."""
SUCCESSION_SECONDS = 30.0
"""Most time that a session waits for the end of a reply that was left before it sends the next message."""


def reply_closed() -> PeerError:
    """What reading a reply brings after it was closed."""
    return PeerError(Code.CANCELLED, "REPLY_CLOSED", "the reply was left before its end")
