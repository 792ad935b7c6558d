"""The processor time that one structure may take in one turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from slipstream.sampling.structure_errors import StructureFailedError

# Processor time. A mask takes 0.01 to 1 ms.
_SECONDS_A_MASK, _SECONDS_A_TOKEN, _BURST_SECONDS = 0.005, 0.0002, 0.3


class Budget:
    """The processor time of one turn: all sequences of a step wait for the structure that each of
    them follows.

    It decides whether a turn fails, never what its text is.
    """

    def __init__(self) -> None:
        self._left = _BURST_SECONDS

    def earn(self, token_count: int) -> None:
        """Credit a mask and the tokens before it. StructureFailedError if what came before took too
        much time."""
        self._left = min(_BURST_SECONDS, self._left + _SECONDS_A_MASK + token_count * _SECONDS_A_TOKEN)
        if self._left < 0:
            raise StructureFailedError(
                f"it takes more than {_SECONDS_A_MASK * 1000:g} ms of processor time a token: use a less ambiguous "
                "grammar, shorter repetitions or fewer alternatives"
            )

    def charge(self, seconds: float) -> None:
        """Debit processor time that was spent. It never fails: work that is done is of use."""
        self._left = max(-_BURST_SECONDS, self._left - seconds)

    def forgive(self) -> None:
        """Cancel a debt that failed the turn: where the same turn is tried again, it may take one
        mask, but no new advance."""
        self._left = max(0.0, self._left)

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Charge the processor time that this thread spends meanwhile."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.charge(time.thread_time() - began)
