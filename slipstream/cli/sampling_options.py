"""Sampling fields on the command line, as ``--sampling top_p=0.9``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.client import Settings
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.sampling_fields import SAMPLING_FIELDS

_WITH_FLAGS = ("temperature", "seed")
"""Fields that commands have flags of their own for."""
_NAMES = [name for name in SAMPLING_FIELDS if name not in _WITH_FLAGS]


def sampling_of(given: Iterable[str], temperature: float | None) -> Mapping[str, float]:
    """Return sampling fields by their names, and the ``temperature`` unless it is None.
    InvalidFieldsError names a wrong one and what would be right."""
    fields = dict(_field_of(each) for each in given)
    if temperature is not None:
        fields["temperature"] = temperature
    for name, value in fields.items():
        if not SAMPLING_FIELDS[name].is_right(value):
            flag = f"--{name}" if name in _WITH_FLAGS else f"--sampling {name}"
            raise InvalidFieldsError([FieldViolation(flag, f"{SAMPLING_FIELDS[name].requirement}, but is {value:g}")])
    return fields


def _field_of(given: str) -> tuple[str, float]:
    name, _, text = given.partition("=")
    name = name.strip().replace("-", "_")
    if name not in _NAMES:
        raise InvalidFieldsError(
            [FieldViolation(f"--sampling {given}", f"must be NAME=NUMBER, of {', '.join(_NAMES)}")]
        )
    try:
        value = int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
        field: dict[str, Any] = {name: value}
        Settings(**field).message()  # it knows which numbers are whole, and their bounds
    except (TypeError, ValueError, OverflowError) as error:
        requirement = f"{SAMPLING_FIELDS[name].requirement}, but is {text!r}"
        raise InvalidFieldsError([FieldViolation(f"--sampling {name}", requirement)]) from error
    return name, value
