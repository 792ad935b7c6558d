"""The open sequences, and which idle ones lose their pages to busy ones. The tokens are the truth;
KV is only a cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from collections.abc import Sequence as TokenSequence

from slipstream.engine.errors import OutOfPagesError
from slipstream.engine.sequence import Sequence, SequenceCache


class OpenSequences:
    """Open sequences by handle, least recently used first."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()
        self.preempted_count = 0
        """Times that a sequence, idle or at work, has lost its pages to others."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return self._sequences.get(sequence.handle) is sequence

    def add(self, sequence: Sequence) -> None:
        """Add a sequence that was opened."""
        self._sequences[sequence.handle] = sequence

    def mark_used(self, sequence: Sequence) -> None:
        """Mark a sequence as used now: it is the last one to lose its pages."""
        self._sequences.move_to_end(sequence.handle)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, unless another one has its handle by now."""
        if sequence in self:
            del self._sequences[sequence.handle]

    def extend(
        self, cache: SequenceCache, sequence: Sequence, tokens: TokenSequence[int], busy: Container[str]
    ) -> bool:
        """Give a sequence pages for its tokens, if necessary those of idle sequences. A sequence is
        idle if its handle is not in ``busy``.

        Returns False if there are not enough pages; then the sequence is unchanged.
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
