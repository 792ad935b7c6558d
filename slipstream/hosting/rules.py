"""Sampling rules that were stated for handles, so that items need only name them. Pure."""

from __future__ import annotations

from collections import OrderedDict

from slipstream.agreed import RULES_PER_HANDLE
from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.sampling.rule import SamplingRule

_MAX_BYTES = 64 * 2**20
"""Most bytes of rules, as they were on the wire. The largest rule has 0.16 MB and takes 2.8 MB when
parsed, so all rules take up to 1.1 GB."""


class UnknownRuleError(SlipstreamError):
    """An item names a rule that was never stated for its handle, or that has been forgotten."""

    reason = Reason.UNKNOWN_RULE


class RuleBook:
    """Parsed rules of each handle by their hash: the last few.

    Rules may be large and handles many. Above ``max_bytes`` of rules, as they were on the wire, the
    longest-idle handles are forgotten and have to state their rules again.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._handles: OrderedDict[str, OrderedDict[int, tuple[SamplingRule, int]]] = OrderedDict()
        self.byte_count = 0

    def store_rule(self, handle: str, number: int, rule: SamplingRule, byte_count: int) -> None:
        """Store a rule of a handle under its hash; it has ``byte_count`` bytes on the wire."""
        rules = self._handles.setdefault(handle, OrderedDict())
        self.byte_count += byte_count - rules.pop(number, (rule, 0))[1]
        rules[number] = rule, byte_count
        self._handles.move_to_end(handle)
        if len(rules) > RULES_PER_HANDLE:
            self.byte_count -= rules.popitem(last=False)[1][1]
        while self.byte_count > self._max_bytes and len(self._handles) > 1:
            self.forget_handle(next(iter(self._handles)))

    def find_rule(self, handle: str, number: int) -> SamplingRule:
        """Return the rule that an item of a handle names. UnknownRuleError."""
        rules = self._handles.get(handle)
        if rules is None or number not in rules:
            raise UnknownRuleError(
                f"rule {number:#018x} is not known for this handle, or not any more: send the rule again"
            )
        rules.move_to_end(number)
        self._handles.move_to_end(handle)
        return rules[number][0]

    def forget_handle(self, handle: str) -> None:
        """Drop the rules of a handle."""
        for _, byte_count in self._handles.pop(handle, {}).values():
            self.byte_count -= byte_count
