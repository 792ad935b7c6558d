"""The worth of guesses that take the target's own processors. Pure.

A guess delays the next step, of all runs. It pays if the tokens that it adds exceed those that the
runs would have made in that time without guesses. A run whose guesses do not pay rests, and guesses
again for a few steps later on. A run that begins rests if those of other runs do not pay: a short
answer would be over before it has found that out.
"""

from __future__ import annotations

_MEMORY_OF_GUESSES = 12
"""Guesses after which one counts a third as much. More: chance changes less, but a text that cannot
be guessed costs more before its run rests."""

_TRIALS_AFTER_REST = 4
"""Guesses after a rest before the run may rest again. More: a text that has become easier is not
missed, but each rest's end costs more."""

_SHORTEST_REST, _LONGEST_REST = 32, 512
"""Tokens of the first rest, and of the longest: each rest in a row is twice as long. More: guesses
that do not pay cost less, but those that have begun to pay are found out later."""


_LONGEST_COMMON_REST = 64
"""Tokens that a run rests because of others at most, so that no caller's texts keep another's from
guesses. More: answers of that length cost less where guesses do not pay."""


class OwnWorth:
    """The worth of guesses along one text, in tokens for each guess."""

    def __init__(self) -> None:
        self.net = 0.0
        """Tokens that a guess adds, less those that it costs: a mean over recent guesses."""
        self._count = 0
        self._trials_left = _TRIALS_AFTER_REST
        self._rest = _SHORTEST_REST
        self._rests_until = 0

    def rests_at(self, length: int) -> bool:
        """Return True if the run does not guess at a length of its text."""
        return length < self._rests_until

    def record(self, gain: float, cost: float, length: int) -> None:
        """Record that a guess at a ``length`` of the text is expected to add ``gain`` tokens, and
        that the runs would have made ``cost`` tokens without it."""
        self._count += 1
        self.net += (gain - cost - self.net) / min(self._count, _MEMORY_OF_GUESSES)
        self._trials_left -= 1
        if self._trials_left > 0:
            return
        if self.net >= 0:
            self._rest = _SHORTEST_REST
            return
        self._rests_until = length + self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)
        self._trials_left, self._count = _TRIALS_AFTER_REST, 0


class CommonWorth:
    """The worth of guesses to all runs, one after another as if they were one text."""

    def __init__(self) -> None:
        self._worth = OwnWorth()
        self._length = 0

    @property
    def rests(self) -> bool:
        """True if a run that begins does not guess now."""
        return self._worth.rests_at(self._length)

    def record(self, gain: float, cost: float) -> None:
        """Record a guess of any run; see `OwnWorth.record`."""
        self._worth.record(gain, cost, self._length)

    def advance(self, token_count: int) -> None:
        """Count tokens of a run that may guess."""
        self._length += token_count


class RunWorth:
    """The worth of one run's guesses: that of all runs until the run has guessed itself, or for
    `_LONGEST_COMMON_REST` tokens."""

    def __init__(self, common: CommonWorth) -> None:
        self._common = common
        self._own: OwnWorth | None = None
        self._token_count = 0

    def rests_at(self, length: int) -> bool:
        """Return True if the run does not guess at a length of its text."""
        if self._own is not None:
            return self._own.rests_at(length)
        return self._common.rests and self._token_count < _LONGEST_COMMON_REST

    def record(self, gain: float, cost: float, length: int) -> None:
        """Record a guess of the run; see `OwnWorth.record`."""
        self._own = self._own or OwnWorth()
        self._own.record(gain, cost, length)
        self._common.record(gain, cost)

    def advance(self, token_count: int) -> None:
        """Count tokens of the run."""
        self._token_count += token_count
        self._common.advance(token_count)
