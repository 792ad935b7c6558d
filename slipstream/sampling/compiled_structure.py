"""A structure as the library compiled it: the state that every sequence begins with."""

from __future__ import annotations

import threading
from collections.abc import Callable

from llguidance import LLMatcher

from slipstream.sampling.matcher_budget import Budget
from slipstream.sampling.structure_errors import StructureFailedError

_MOST_SECONDS_TO_REPEAT = 0.1
"""A structure that took longer to compile is not compiled again between the steps of others."""


class Compiled:
    """States before the first token, as many as one likes.

    What the library calls a deep copy shares its lexer with the original. That makes copies fast,
    one's work serves all; but a limit that one of them meets, all have met, and the original too.
    """

    def __init__(self, new: Callable[[], tuple[LLMatcher, float]]) -> None:
        """``new`` compiles: it returns a state and the processor time that this took."""
        self._new = new
        self._shared, self._seconds = new()
        self._lock = threading.Lock()
        self._is_spent = self._is_doubtful = False

    @property
    def is_spent(self) -> bool:
        """True if no sound copy can be made any more. It is checked only after a matcher failed."""
        with self._lock:
            if self._is_doubtful:
                self._is_doubtful = False
                self._is_spent = self._seconds > _MOST_SECONDS_TO_REPEAT and self._sound_copy() is None
            return self._is_spent

    def doubt(self) -> None:
        """A matcher failed: the lexer that others share may have met a limit."""
        self._is_doubtful = True

    def alone(self, budget: Budget) -> LLMatcher:
        """A state that shares nothing. StructureFailedError if that takes too long where sequences
        wait for one another."""
        if self._seconds > _MOST_SECONDS_TO_REPEAT:
            raise StructureFailedError(
                "it met a limit and takes too long to be compiled again: use a simpler structure"
            )
        state, seconds = self._new()
        budget.charge(seconds)
        return state

    def copy(self, budget: Budget) -> LLMatcher:
        """A state that shares what others find, a sound one: if the shared lexer met a limit, it is
        replaced."""
        with self._lock, budget.charged():
            state = self._sound_copy()
            if state is None:
                self._is_spent = True
                self._shared = self.alone(budget)
                self._is_spent = False
                state = self._shared.deep_copy()
            return state

    def _sound_copy(self) -> LLMatcher | None:
        state = self._shared.deep_copy()
        state.compute_bitmask()
        return None if state.is_error() else state
