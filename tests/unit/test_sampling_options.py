"""Sampling fields that a command line names."""

from __future__ import annotations

import pytest

from slipstream.cli.sampling_options import sampling_of
from slipstream.errors import InvalidFieldsError


def test_fields_are_read_by_their_names() -> None:
    assert sampling_of([], None) == {}
    given = ["top_p=0.9", "top-k = 40", "presence_penalty=-1", "top_p=.8"]
    assert sampling_of(given, 0.7) == {"top_p": 0.8, "top_k": 40, "presence_penalty": -1, "temperature": 0.7}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("top_p", "--sampling top_p must be above 0 and at most 1, but is ''"),
        ("top_p=", "--sampling top_p must be above 0 and at most 1, but is ''"),
        ("top_p=nan", "--sampling top_p must be above 0 and at most 1, but is nan"),
        ("top_p=0", "--sampling top_p must be above 0 and at most 1, but is 0"),
        ("top_k=1.5", "--sampling top_k must be 0"),
        ("top_k=inf", "--sampling top_k must be 0"),
        ("top_k=99999999999999999999", "--sampling top_k must be 0"),
        ("min_p=0.5x", "--sampling min_p must be from 0 to 1, but is '0.5x'"),
        ("min_p=1e999", "--sampling min_p must be from 0 to 1, but is inf"),
        ("topp=1", "--sampling topp=1 must be NAME=NUMBER, of top_k, top_p, "),
        ("temperature=1", "must be NAME=NUMBER"),
        ("seed=1", "must be NAME=NUMBER"),
        ("", "must be NAME=NUMBER"),
    ],
)
def test_a_wrong_field_is_named_with_what_would_be_right(given: str, said: str) -> None:
    with pytest.raises(InvalidFieldsError) as refused:
        sampling_of([given], None)
    assert said in str(refused.value)


@pytest.mark.parametrize("temperature", [-1.0, 1e-9, 101.0, float("nan"), float("inf")])
def test_a_wrong_temperature_is_named(temperature: float) -> None:
    with pytest.raises(InvalidFieldsError, match="--temperature must be 0"):
        sampling_of([], temperature)
