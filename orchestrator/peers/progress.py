"""Whether a peer that owes answers gets on with them. Pure.

::

    an answer, a step --> silence --a fifth of the least time--> look --as long again--> look .. --> stalled
            ^___________________________a step has been made___________|       two looks without a word, two at which it has
                                                                               nothing to do, or no step for the whole deadline
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_FACTOR = 4.0
"""Times what the tokens owed are expected to take: attending to long pasts is slower than what was
measured."""

_FULL_STEP = 512
"""Tokens of a step that others have filled: no silence is too long in which such a step may be
made."""

_UNKNOWN_TOKEN_SECONDS = 0.005
"""Of a token where nothing is known yet; times the factor that is fifty tokens a second, as large a
model on a few cores."""

_PATIENT = 10.0
"""Times the deadline that a peer may answer nothing at all, whatever it says of its steps: those
may be others', or made up."""

_LOOKS = 2
"""That say the same, one after the other, for one may just have come at a bad moment. A process
that does not even say how busy it is has been stopped; one that has nothing to do has lost what it
owes, or it was lost on the way."""

LOOK_SHARE = 0.2
"""Of the least time, the silence before each look: two looks that wait as long for an answer end
within three fifths of it, and the rest is left to move in: beside sixteen sessions on two cores
that took up to 0.55 s."""


class Look(NamedTuple):
    """What a peer says of itself."""

    step_count: int
    """Steps it has made."""
    unfinished_count: int | None
    """Items of anybody's that it has and has not answered; None from a peer that does not count
    them."""


class Progress:
    """What a peer owes, and for how long it has not got on. It gets on when it verifies an item or
    makes a step: behind others' prompts an item may rightly wait for long."""

    def __init__(
        self, least_seconds: float, work: Callable[[int], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``least_seconds`` of silence count as nothing. ``work`` says how many seconds so many
        tokens should take, 0 if that is not known yet."""
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
        """Whether somebody waits for an answer."""
        return self._owed_count > 0

    def owe(self, token_count: int) -> None:
        """An item of so many tokens has been asked."""
        if not self._owed_count:
            self._answered = self._clock()
            self._begin_silence()
        self._owed_count += 1
        self._owed_tokens += token_count

    def settle(self, token_count: int) -> None:
        """An item of so many tokens is not waited for any more, answered or not."""
        self._owed_count -= 1
        self._owed_tokens -= token_count

    def verified(self) -> None:
        """An item has its answer; a refusal is none, for refused is also what a full queue has no
        place for."""
        self._answered = self._clock()
        self._begin_silence()

    def looked(self, asked: float, look: Look | None) -> None:
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
        """Until it is time to look at the peer; 0 if it is."""
        return max(0.0, max(self._since, self._looked) + self._least * LOOK_SHARE - self._clock())

    @property
    def is_stalled(self) -> bool:
        """Whether the peer does not get on. One look alone never says so: if it was we who were
        held up, what the peer has done meanwhile is still on its way."""
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
