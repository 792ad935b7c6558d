"""Retries of a call: when the next attempt is due, and when to give up. No I/O."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.errors import Code
from slipstream.rpc.status import PeerError

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0
_REMOVED = "Stream removed"


@dataclass(slots=True)
class Contact:
    """The state that all calls of a client share."""

    reconnect: float
    """Seconds for which a lost server is called again."""
    on_lost: Callable[[PeerError], None] | None = None
    """Called once for each lost connection, before it is made again."""
    reached: bool = False
    """True once the server has answered. A server that never answered is not called again: its
    address may be wrong."""


def is_lost(error: PeerError) -> bool:
    """Return whether the connection failed rather than the call: the server is away, or the call
    was cancelled and not by this client."""
    is_cancelled = error.code is Code.CANCELLED and error.reason == Code.CANCELLED.name
    return error.code is Code.UNAVAILABLE or is_cancelled or _is_removed(error)


def _is_removed(error: PeerError) -> bool:
    """Return whether the connection was closed just when the call began. gRPC then makes up a
    status of its own, UNKNOWN, and the call may have reached the server or not."""
    return error.code is Code.UNKNOWN and error.reason == Code.UNKNOWN.name and str(error).startswith(_REMOVED)


class Attempts:
    """The attempts at one call, within its deadline and, after a loss, within the time for
    reconnecting."""

    def __init__(
        self,
        contact: Contact,
        timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Begin the attempts. ``timeout`` is in seconds for all attempts together; None or
        infinite is no limit. ``jitter`` returns a number in [0, 1)."""
        self._contact = contact
        self._clock = clock
        self._jitter = jitter
        self._deadline = clock() + (math.inf if timeout is None else timeout)
        self._lost_since: float | None = None
        self._count = 0

    @property
    def repeated(self) -> bool:
        """True if an attempt was lost. It may have done its work."""
        return self._count > 0

    @property
    def reached(self) -> bool:
        """True if the server has ever answered."""
        return self._contact.reached

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without one."""
        left = self._deadline - self._clock()
        return None if left == math.inf else max(0.0, left)

    def note_answer(self) -> None:
        """Note that the server has answered."""
        self._contact.reached = True
        self._lost_since = None
        self._count = 0

    def delay_after(self, error: PeerError) -> float:
        """Return the seconds to wait before the next attempt: twice as long each time, at least
        as long as the server asks for, and partly random. Raises the error if it is final,
        DEADLINE_EXCEEDED if no time is left for another attempt."""
        if error.reason != error.code.name or _is_removed(error):
            self._contact.reached = True  # only a server gives reasons, or closes a connection
        if not is_lost(error):
            raise error
        now = self._clock()
        self._lost_since = now if self._lost_since is None else self._lost_since
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0**self._count) * (0.5 + 0.5 * self._jitter())
        delay = max(delay, error.retry_after or 0.0)
        first, self._count = self._count == 0, self._count + 1
        if not self._contact.reached or now + delay - self._lost_since > self._contact.reconnect:
            raise error
        if now + delay >= self._deadline:
            raise PeerError(
                Code.DEADLINE_EXCEEDED, Code.DEADLINE_EXCEEDED.name, f"no answer in time; last: {error}"
            ) from error
        if first and self._contact.on_lost is not None:
            self._contact.on_lost(error)
        return delay
