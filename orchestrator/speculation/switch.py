"""Whether drafting pays, and when to look again once it does not. Pure."""

from __future__ import annotations

_WORTH_IT, _WORTH_A_RETURN = 1.01, 1.04
"""How much better than plain decoding speculation must be, while it is on and once it is off."""

_FIRST_TRY, _FARTHER, _LAST_TRY = 48.0, 2.1, 1536.0
"""Rounds from one try to the next while it is off: each time about twice as many."""

TRY_ROUNDS = 2
"""How long a try takes: where the draft overlaps, the first round asks and the second uses what
came."""


class Switch:
    """On at first. Off, it says now and then to try, since only drafting shows whether a draft has
    become better."""

    def __init__(self) -> None:
        self.trying = False
        """Whether the last answer was to try, for `TRY_ROUNDS`."""
        self._on = True
        self._rounds = 0.0
        self._distance = _FIRST_TRY

    def drafts(self, gain: float, rounds: float) -> bool:
        """Whether to draft, if that should be ``gain`` times as fast as plain decoding; ``rounds``
        were run since the last call."""
        self.trying = False
        if gain > (_WORTH_IT if self._on else _WORTH_A_RETURN):
            self._on, self._distance = True, _FIRST_TRY
            return True
        self._rounds = 0.0 if self._on else self._rounds + rounds
        self._on = False
        if self._rounds < self._distance:
            return False
        self.trying, self._rounds = True, 0.0
        self._distance = min(_FARTHER * self._distance, _LAST_TRY)
        return True
