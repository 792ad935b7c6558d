"""The sequences of a job's lines: the job's own for the base line, a fork for each branch."""

from __future__ import annotations

from array import array
from collections.abc import Container

from slipstream.engine.errors import OutOfPagesError
from slipstream.engine.hinting.hints import MOST_TOKENS
from slipstream.engine.hinting.horizon import Line
from slipstream.engine.sequence import Sequence, SequenceCache


class LineSequences:
    """Sequences by line. They belong to the model thread."""

    def __init__(self, own: Sequence) -> None:
        self.own = own
        """The job's own sequence."""
        self.cache: SequenceCache
        """The cache of the engine. Set when the job begins."""
        self._forks: dict[Line, Sequence] = {}

    def has_room(self) -> bool:
        """True if a branch takes no page from another sequence. Any thread may ask."""
        return self.cache.pool.counts().free > self.cache.pages_for(MOST_TOKENS) + 1

    def sequence_of(self, branch: Line) -> Sequence:
        """Return the sequence of a branch: a fork of the job's own, if it has none yet."""
        fork = self._forks.get(branch)
        if fork is None:
            fork = self._forks[branch] = self.cache.fork(self.own, self.own.handle)
        return fork

    def extend(self, branch: Line, committed: array[int], known: int, computed: int, most: int) -> int:
        """Append what a branch's sequence lacks, and return how many tokens that are; 0 if they are
        more than ``most``, or if there are no pages for them.

        ``known`` tokens of it are known to be committed ones. If it is a new fork, it keeps
        ``computed`` tokens at most.
        """
        if branch not in self._forks:
            fork = self.sequence_of(branch)
            self.cache.truncate(fork, min(len(fork), computed))
        fork = self._forks[branch]
        known = min(known, len(fork))
        tail = committed[known:] + array("q", branch.path)
        self.cache.rewind(fork, known, tail[:-1])
        lacking = tail[len(fork) - known :]
        if len(lacking) > most:
            return 0
        try:
            self.cache.extend(fork, lacking)
        except OutOfPagesError:
            return 0
        return len(lacking)

    def make_base(self, line: Line) -> None:
        """Let the job's own sequence be that of a branch which the target has followed, if it has
        one."""
        fork = self._forks.pop(line, None)
        if fork is not None:
            self.cache.release(self.own)
            self.own.tokens, self.own.pages, self.own.keys = fork.tokens, fork.pages, fork.keys

    def keep(self, lines: Container[Line]) -> None:
        """Release the forks of all other lines."""
        for line in [line for line in self._forks if line not in lines]:
            self.cache.release(self._forks.pop(line))
