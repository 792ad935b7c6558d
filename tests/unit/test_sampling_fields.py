from __future__ import annotations

import math

import pytest
from google.protobuf.descriptor import FieldDescriptor

from slipstream.client import Settings
from slipstream.sampling.rule import SamplingRule, sampling_violations
from slipstream.sampling_fields import (
    MODEL_DEFAULTS,
    SAMPLING_FIELDS,
    CompleteSamplingFields,
    SamplingFields,
    values_of,
)
from slipstream.v1 import sampling_pb2

NUMBERS = {
    name: each
    for name, each in sampling_pb2.SamplingParameters.DESCRIPTOR.fields_by_name.items()
    if not each.is_repeated
}


def test_the_table_has_a_line_for_each_number_of_sampling_parameters() -> None:
    assert set(SAMPLING_FIELDS) == set(NUMBERS)


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_a_field_has_the_type_that_the_proto_gives_it(name: str) -> None:
    is_real = NUMBERS[name].cpp_type == FieldDescriptor.CPPTYPE_FLOAT
    assert SamplingFields.__annotations__[name] == ("Real" if is_real else "Whole")
    assert isinstance(SAMPLING_FIELDS[name].off, float if is_real else int)


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_a_field_is_unset_in_settings_and_off_in_a_rule(name: str) -> None:
    assert getattr(Settings(), name) is None
    assert getattr(SamplingRule(), name) == SAMPLING_FIELDS[name].off
    assert not Settings().message().sampling.HasField(name)


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_a_value_that_is_no_number_is_refused(name: str) -> None:
    assert sampling_violations(SamplingRule()) == []
    violations = sampling_violations(SamplingRule(**{name: math.nan}))
    assert [(each.field, each.description) for each in violations] == [
        (name, f"{SAMPLING_FIELDS[name].requirement}, but is nan")
    ]


def test_what_is_given_stays_and_what_is_not_is_off() -> None:
    complete = CompleteSamplingFields(temperature=0.5, seed=7)
    assert values_of(complete) == values_of(CompleteSamplingFields()) | {"temperature": 0.5, "seed": 7}


def test_settings_take_their_first_fields_by_position_and_their_lists_by_name() -> None:
    assert Settings(0.7, 5, 0.9) == Settings(temperature=0.7, top_k=5, top_p=0.9)
    with pytest.raises(TypeError):
        Settings(*[None] * len(SAMPLING_FIELDS), {5: 1.0})  # type: ignore[call-arg]


def test_a_model_has_no_default_seed() -> None:
    assert "seed" not in MODEL_DEFAULTS
