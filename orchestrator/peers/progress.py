"""Decide whether a peer that owes answers makes progress. Pure.

::

    an answer, a step --> silence --(a fifth of the least time)--> look --(as long again)--> look
            ^                                                        |                          |
            |___________________ a step has been made _______________|__________________________|

The peer is stalled after two looks that it did not answer, after two at which it had nothing to do,
or after no step for the whole deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_FACTOR = 4.0
"""Multiple of the expected time of the owed tokens. Attention to long contexts is slower than what
was measured."""

_FULL_STEP = 512
"""Tokens of a step that other callers have filled. A silence as long as such a step is not too
long."""

_UNKNOWN_TOKEN_SECONDS = 0.005
"""Seconds of a token before anything is measured. Times the factor this is fifty tokens a second, a
large model on a few cores."""

_PATIENT = 10.0
"""Deadlines that a peer may pass without an answer even if it reports steps, because those may
belong to others or be invented."""

_LOOKS = 2
"""Looks in a row that must say the same, because a single one may come at a bad moment. A process
that does not even report its load has been stopped. One that has nothing to do has lost its items,
or they were lost on the way."""

LOOK_SHARE = 0.2
"""Silence before each look, as a share of the least time.

Two looks that wait as long for an answer end within three fifths of the least time. The rest is
left to move in: beside sixteen sessions on two cores that took up to 0.55 s.
"""


class Look(NamedTuple):
    """Report of a peer about itself."""

    step_count: int
    """Steps it has made."""
    unfinished_count: int | None
    """Items of all callers that the peer holds and has not answered; None from a peer that does not
    count them."""


class Progress:
    """The items that a peer owes, and the time since its last progress.

    A verified item or a step is progress. An item may rightly wait a long time behind other
    prompts.
    """

    def __init__(
        self, least_seconds: float, work: Callable[[int], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``least_seconds`` of silence count as nothing. ``work`` returns the expected seconds of a
        token count, or 0 if that is not known yet."""
        self._least = least_seconds
        self._work = work
        self._clock = clock
        self._owed_count = self._owed_tokens = 0
        self._since = self._looked = self._answered = 0.0
        self._unanswered = self._idle = 0
        self._step_count: int | None = None
        self._stands_still = False

    @property
    def is_owed(self) -> bool:
        """True if a caller waits for an answer."""
        return self._owed_count > 0

    def owe(self, token_count: int) -> None:
        """Record that an item of ``token_count`` tokens was sent."""
        if not self._owed_count:
            self._answered = self._clock()
            self._begin_silence()
        self._owed_count += 1
        self._owed_tokens += token_count

    def settle(self, token_count: int) -> None:
        """Record that no caller waits for an item of ``token_count`` tokens any more, answered or
        not."""
        self._owed_count -= 1
        self._owed_tokens -= token_count

    def record_verification(self) -> None:
        """Record that an item has its answer. A refusal does not count, because a full queue
        refuses too."""
        self._answered = self._clock()
        self._begin_silence()

    def record_look(self, asked: float, look: Look | None) -> None:
        """The peer, asked at a time, says how far it is; None if it says nothing."""
        if asked < self._since:  # it has got on meanwhile
            return
        self._looked = asked
        if look is None:
            self._unanswered += 1
            return
        step_count = look.step_count
        before, self._step_count = self._step_count, step_count
        self._unanswered = 0
        self._idle = self._idle + 1 if look.unfinished_count == 0 else 0
        self._stands_still = step_count == before
        if before is not None and not self._stands_still:
            self._begin_silence()
            self._step_count = step_count

    @property
    def deadline(self) -> float:
        """Seconds without a step after which the peer has stalled."""
        token_count = max(self._owed_tokens, _FULL_STEP)
        return self._least + _FACTOR * (self._work(token_count) or token_count * _UNKNOWN_TOKEN_SECONDS)

    @property
    def seconds_to_look(self) -> float:
        """Seconds until the next look at the peer; 0 if it is due."""
        return max(0.0, max(self._since, self._looked) + self._least * LOOK_SHARE - self._clock())

    @property
    def is_stalled(self) -> bool:
        """True if the peer makes no progress. It takes more than one look: if this process was held
        up, the peer's answers are still on their way."""
        if max(self._unanswered, self._idle) >= _LOOKS:
            return True
        if self._clock() - self._answered >= _PATIENT * self.deadline:
            return True
        return self._stands_still and self._clock() - self._since >= self.deadline

    def _begin_silence(self) -> None:
        self._since = self._clock()
        self._looked = 0.0
        self._unanswered = self._idle = 0
        self._stands_still = False
        self._step_count = None
