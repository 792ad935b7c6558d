"""A rule on the wire whose positions cannot be is refused by the field's name."""

from __future__ import annotations

import pytest

from slipstream.errors import InvalidFieldsError
from slipstream.rpc.sampling_wire import rule_message, rule_of
from slipstream.sampling.rule import SamplingRule


@pytest.mark.parametrize("field", ["first_end_position", "first_generated_position"])
def test_a_position_before_the_first_is_refused(field: str) -> None:
    message = rule_message(SamplingRule(), 259)
    assert rule_of(message, 259) == SamplingRule()
    setattr(message, field, -1)
    with pytest.raises(InvalidFieldsError) as caught:
        rule_of(message, 259)
    assert [violation.field for violation in caught.value.violations] == [f"rule.{field}"]
