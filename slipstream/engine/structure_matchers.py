"""The matchers of structures: which tokens a sequence's structure allows at each row of a step."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

from slipstream.engine.errors import InvalidItemError
from slipstream.engine.sequence import Sequence
from slipstream.sampling.matcher import Matcher
from slipstream.sampling.matcher_budget import Budget
from slipstream.sampling.row import Mask
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure
from slipstream.sampling.structure_compiler import StructureCompiler
from slipstream.sampling.structure_errors import StructureFailedError

_MAX_MATCHERS = 64
"""Most matchers of sequences. A matcher and its cached states may take megabytes."""

_MAX_FORK_MATCHERS = 512
"""Most matchers of forks. In a common table, eight forks of each of eight sessions would push out
the sessions' own matchers, and all would be built again at each step. Forks share cached states
with one another (`slipstream.sampling.matcher`) and end with their job."""

_Turn = tuple[Structure, int]
"""The structure that a sequence follows, and the position it starts at."""

_Matchers = OrderedDict[Sequence, tuple[_Turn, Matcher]]


class StructureMatchers:
    """One matcher for each sequence. It follows the sequence's tokens forwards and, when a round is
    rolled back, backwards.

    A matcher is a cache, as KV is: the tokens are enough to build it again after it is lost, fails,
    or is evicted. The budget belongs to a turn. A sequence shares it with its forks, and keeps it
    when its matcher is built again.
    """

    def __init__(self) -> None:
        self.compiler: StructureCompiler | None = None
        """Compiler that is set once, before the first step. Without it no rule may have a
        structure."""
        self._matchers: _Matchers = OrderedDict()  # least recently used first
        self._forks: _Matchers = OrderedDict()
        self._budgets: WeakKeyDictionary[Sequence, tuple[_Turn, Budget]] = WeakKeyDictionary()

    def masks(self, sequence: Sequence, rule: SamplingRule, wanted: int, committed_length: int) -> list[Mask | None]:
        """Return the allowed tokens after each of the last ``wanted`` tokens; None after a guess
        that breaks the structure.

        StructureFailedError if the structure cannot be followed any further. InvalidItemError if
        committed tokens, those before ``committed_length``, break it.
        """
        try:
            return self._masks(sequence, rule, wanted, committed_length)
        except BaseException:  # the state of a matcher that failed midway is unknown
            self._table_of(sequence)[0].pop(sequence, None)
            if (known := self._budgets.get(sequence.root)) is not None:
                known[1].forgive()
            raise

    def forget_sequence(self, sequence: Sequence) -> None:
        """Forget a sequence that is closed."""
        self._table_of(sequence)[0].pop(sequence, None)

    def _masks(self, sequence: Sequence, rule: SamplingRule, wanted: int, committed_length: int) -> list[Mask | None]:
        assert rule.structure is not None
        matcher = self._matcher(sequence, (rule.structure, rule.first_generated_position))
        first = len(sequence) - wanted + 1
        try:
            fits = matcher.sync(list(sequence.tokens[rule.first_generated_position : first]))
        except StructureFailedError:
            if first <= committed_length:
                raise
            fits = False
        if fits:
            return matcher.masks(list(sequence.tokens[first:]))
        if first <= committed_length:
            raise InvalidItemError("the tokens generated so far do not fit the structure", field="rule.structure")
        return [None] * wanted  # a guess of an earlier step breaks it

    def _table_of(self, sequence: Sequence) -> tuple[_Matchers, int]:
        """Return the table that holds a sequence's matcher, and its size limit."""
        return (self._forks, _MAX_FORK_MATCHERS) if sequence.is_fork else (self._matchers, _MAX_MATCHERS)

    def _matcher(self, sequence: Sequence, turn: _Turn) -> Matcher:
        matchers, most = self._table_of(sequence)
        known = matchers.pop(sequence, None)
        if known is None or known[0] != turn:
            if self.compiler is None:
                raise InvalidItemError("this service was started without structured output", field="rule.structure")
            known = (turn, self.compiler.matcher(turn[0], self._budget(sequence.root, turn)))
        matchers[sequence] = known
        if len(matchers) > most:
            matchers.popitem(last=False)
        return known[1]

    def _budget(self, root: Sequence, turn: _Turn) -> Budget:
        known = self._budgets.get(root)
        if known is None or known[0] != turn:
            known = self._budgets[root] = (turn, Budget())
        return known[1]
