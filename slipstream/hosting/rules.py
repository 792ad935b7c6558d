"""The rules that handles have been told, so that items need only name them. Pure."""

from __future__ import annotations

from collections import OrderedDict

from slipstream.agreed import RULES_PER_HANDLE
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.sampling.rule import SamplingRule

_MAX_BYTES = 64 * 2**20
"""On the wire. Parsed and laid out a rule that lists as much as it may, 0.16 MB, takes 2.8 MB: all
of them 1.1 GB."""


class UnknownRuleError(SlipstreamError):
    """A handle's item names a rule that the handle was not told, or so long ago that it has been
    forgotten."""

    reason = Reason.UNKNOWN_RULE


class RuleBook:
    """Each handle's last few rules by their hash, as they were parsed.

    Rules may be large, and handles many: past ``max_bytes`` of them, as they were on the wire, the
    handles that have been idle longest are left to state theirs again.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._handles: OrderedDict[str, OrderedDict[int, tuple[SamplingRule, int]]] = OrderedDict()
        self.byte_count = 0

    def keep(self, handle: str, number: int, rule: SamplingRule, byte_count: int) -> None:
        """A handle is told a rule, ``byte_count`` long on the wire, and what its hash is."""
        rules = self._handles.setdefault(handle, OrderedDict())
        self.byte_count += byte_count - rules.pop(number, (rule, 0))[1]
        rules[number] = rule, byte_count
        self._handles.move_to_end(handle)
        if len(rules) > RULES_PER_HANDLE:
            self.byte_count -= rules.popitem(last=False)[1][1]
        while self.byte_count > self._max_bytes and len(self._handles) > 1:
            self.forget(next(iter(self._handles)))

    def find(self, handle: str, number: int) -> SamplingRule:
        """The rule that a handle's item names. UnknownRuleError."""
        rules = self._handles.get(handle)
        if rules is None or number not in rules:
            raise UnknownRuleError(
                f"this handle has not been told rule {number:#018x}, or not lately: send the rule again"
            )
        rules.move_to_end(number)
        self._handles.move_to_end(handle)
        return rules[number][0]

    def forget(self, handle: str) -> None:
        """A handle has been given back; nothing happens if it was told nothing."""
        for _, byte_count in self._handles.pop(handle, {}).values():
            self.byte_count -= byte_count
