"""When a call that failed is tried again, and when it is over. No I/O."""

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


@dataclass(slots=True)
class Contact:
    """What a client's calls share."""

    reconnect: float
    """Seconds for which a server that was there before is called again."""
    on_lost: Callable[[PeerError], None] | None = None
    """Told once of each connection that is lost, before it is made anew."""
    reached: bool = False
    """Whether the server has ever answered. One that has not is not waited for: its address may be
    wrong."""


def is_lost(error: PeerError) -> bool:
    """Whether the connection is to blame rather than the call: a call that nobody here cancelled,
    or a server that is away."""
    return error.code is Code.UNAVAILABLE or (error.code is Code.CANCELLED and error.reason == Code.CANCELLED.name)


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
        """``timeout`` in seconds for all attempts together; None or infinite: none. ``jitter`` is
        in [0, 1)."""
        self._contact = contact
        self._clock = clock
        self._jitter = jitter
        self._deadline = clock() + (math.inf if timeout is None else timeout)
        self._lost_since: float | None = None
        self._count = 0

    @property
    def repeated(self) -> bool:
        """Whether an attempt was lost, which may have done its work."""
        return self._count > 0

    @property
    def reached(self) -> bool:
        """Whether the server has ever answered."""
        return self._contact.reached

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        left = self._deadline - self._clock()
        return None if left == math.inf else max(0.0, left)

    def note_answer(self) -> None:
        """The server said something."""
        self._contact.reached = True
        self._lost_since = None
        self._count = 0

    def delay_after(self, error: PeerError) -> float:
        """Seconds to wait before the next attempt: twice as long each time, or as long as the
        server asks for, and partly by chance. Raises the error if it is final, DEADLINE_EXCEEDED if
        there is no time for another attempt."""
        if error.reason != error.code.name:
            self._contact.reached = True  # only a server gives reasons
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
