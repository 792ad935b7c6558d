"""The worth of guesses that take the target's own processors. Pure.

A guess delays the next step, of all runs. It pays if the tokens that it adds exceed those that the
runs would have made in that time without guesses. A run whose guesses do not pay rests, and guesses
again for a few steps later on.
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


class OwnWorth:
    """The worth of one run's guesses, in tokens for each guess."""

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
