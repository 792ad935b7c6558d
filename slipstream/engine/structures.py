"""What the structures that sequences follow allow at each row of a step."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from slipstream.engine.errors import InvalidItemError
from slipstream.engine.sequence import Sequence
from slipstream.sampling.matcher import Matcher, StructureCompiler
from slipstream.sampling.row import Mask
from slipstream.sampling.rule import SamplingRule
from slipstream.sampling.structure import Structure


class Structures:
    """One matcher for each sequence: it follows the sequence's tokens forth and, when a round is rolled back, back.

    A matcher is cache like KV is: one that is lost is made anew from the tokens.
    """

    def __init__(self) -> None:
        self.compiler: StructureCompiler | None = None
        """Set once, before the first step; without it no rule may have a structure."""
        self._matchers: WeakKeyDictionary[Sequence, tuple[Structure, Matcher]] = WeakKeyDictionary()

    def masks(self, sequence: Sequence, rule: SamplingRule, wanted: int) -> list[Mask | None]:
        """What may be chosen after each of the last ``wanted`` tokens; None after a token that breaks the structure.

        StructureFailedError if the structure cannot be followed any further; InvalidItemError if the tokens before break it.
        """
        assert rule.structure is not None
        matcher = self._matcher(sequence, rule.structure)
        first = len(sequence) - wanted + 1
        if not matcher.sync(sequence.tokens[rule.first_generated_position : first]):
            raise InvalidItemError("the tokens generated so far do not fit the structure", field="rule.structure")
        return matcher.masks(sequence.tokens[first:])

    def _matcher(self, sequence: Sequence, structure: Structure) -> Matcher:
        known = self._matchers.get(sequence)
        if known is not None and known[0] == structure:
            return known[1]
        if self.compiler is None:
            raise InvalidItemError("this service was started without structured output", field="rule.structure")
        matcher = self.compiler.matcher(structure)
        self._matchers[sequence] = (structure, matcher)
        return matcher
