"""The open sequences, and which of them give their pages to those at work: tokens are truth, KV is
cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from collections.abc import Sequence as TokenSequence

from slipstream.engine.errors import OutOfPagesError
from slipstream.engine.sequence import Sequence, SequenceCache


class OpenSequences:
    """Sequences by handle, least recently used first."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()
        self.preempted_count = 0
        """Idle sequences that have given their pages to others."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return self._sequences.get(sequence.handle) is sequence

    def add(self, sequence: Sequence) -> None:
        """Know an open sequence."""
        self._sequences[sequence.handle] = sequence

    def mark_used(self, sequence: Sequence) -> None:
        """A sequence is in use: it comes last to give way."""
        self._sequences.move_to_end(sequence.handle)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, unless another one has its handle by now."""
        if sequence in self:
            del self._sequences[sequence.handle]

    def extend(
        self, cache: SequenceCache, sequence: Sequence, tokens: TokenSequence[int], busy: Container[str]
    ) -> bool:
        """Give a sequence pages for its tokens, if need be those of idle sequences, which are all
        but the ``busy`` handles.

        False if there are not enough; then the sequence is as it was.
        """
        idle = None
        while True:
            try:
                cache.extend(sequence, tokens)
                return True
            except OutOfPagesError:
                if idle is None:
                    idle = [s for handle, s in self._sequences.items() if handle not in busy and s.pages]
                    idle.reverse()
                if not idle:
                    return False
                cache.release(idle.pop())
                self.preempted_count += 1
