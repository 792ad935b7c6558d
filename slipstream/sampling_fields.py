"""The sampling fields: one table that the client, the contract, the wire and the rule read.

A sampling field is a number of the message ``SamplingParameters``. Its line in `SamplingFields` is
all that Python needs to carry it from a caller's settings to the rule that chooses tokens. To add a
field, add a line to ``protos/slipstream/v1/sampling.proto`` and one here. What the field does to
logits is a function in `slipstream.sampling`.

It needs the standard library only, since the client imports it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6
"""Least temperature above 0. Dividing by less may overflow."""
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
"""Bounds that keep logits finite: they are multiplied or divided by the penalty, and then divided
by the temperature."""

Real = TypeVar("Real", bound=float | None)
"""Type of a real number: ``float``, or ``float | None`` where a field may be unset."""
Whole = TypeVar("Whole", bound=int | None)
"""Type of a whole number: ``int``, or ``int | None`` where a field may be unset."""

_KEY = "sampling_field"


@dataclass(frozen=True, slots=True)
class SamplingField:
    """An entry of the table."""

    off: float
    """The value that changes nothing."""
    requirement: str
    """Sentence about the field that says which values are right: "must be from 0 to 1"."""
    is_right: Callable[[Any], bool]
    """Predicate of right values. It is False for NaN."""
    is_model_default: bool
    """True if a model's generation_config.json may set it, by the field's own name."""
    gguf_key: str
    """Last part of the key by which a GGUF file sets it. Empty: it has none."""


def _number(
    off: float,
    requirement: str,
    is_right: Callable[[Any], bool],
    *,
    is_model_default: bool = False,
    gguf_key: str = "",
) -> Any:
    """Return a dataclass field that is unset by default and knows its `SamplingField`."""
    known = SamplingField(off, requirement, is_right, is_model_default, gguf_key)
    return field(default=None, metadata={_KEY: known})


def _at_least(value: float, bound: float) -> bool:
    """Return whether ``value`` is ``bound`` or more, or becomes so as a float32 on the wire."""
    nearest: float = struct.unpack("f", struct.pack("f", bound))[0]
    return value >= min(bound, nearest)


def _is_share(value: float) -> bool:
    return 0 < value <= 1


def _is_penalty(value: float) -> bool:
    return -MAX_PENALTY <= value <= MAX_PENALTY


_A_SHARE = "must be above 0 and at most 1"
_A_PENALTY = f"must be from {-MAX_PENALTY:g} to {MAX_PENALTY:g}"


@dataclass(frozen=True, slots=True)
class SamplingFields(Generic[Real, Whole]):
    """The table: a line for each field, in the order in which settings take them by position.

    Subclasses say whether a field may be unset: ``SamplingFields[float | None, int | None]``.
    """

    temperature: Real = _number(
        0.0,
        f"must be 0 (greedy) or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}",
        lambda value: value == 0 or (_at_least(value, MIN_TEMPERATURE) and value <= MAX_TEMPERATURE),
        is_model_default=True,
        gguf_key="temp",
    )
    top_k: Whole = _number(
        0, "must be 0 (off) or more", lambda value: value >= 0, is_model_default=True, gguf_key="top_k"
    )
    top_p: Real = _number(1.0, _A_SHARE, _is_share, is_model_default=True, gguf_key="top_p")
    min_p: Real = _number(
        0.0, "must be from 0 to 1", lambda value: 0 <= value <= 1, is_model_default=True, gguf_key="min_p"
    )
    typical_p: Real = _number(1.0, _A_SHARE, _is_share, is_model_default=True)
    repetition_penalty: Real = _number(
        1.0,
        f"must be from {MIN_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}",
        lambda value: _at_least(value, MIN_REPETITION_PENALTY) and value <= MAX_REPETITION_PENALTY,
        is_model_default=True,
        gguf_key="penalty_repeat",
    )
    presence_penalty: Real = _number(0.0, _A_PENALTY, _is_penalty)
    frequency_penalty: Real = _number(0.0, _A_PENALTY, _is_penalty)
    seed: Whole = _number(0, "must be from 0 to 2^63 - 1", lambda value: 0 <= value <= MAX_SEED)
    top_n_sigma: Real = _number(0.0, "must be from 0 (off) to 100", lambda value: 0 <= value <= 100)


SAMPLING_FIELDS: Final[Mapping[str, SamplingField]] = MappingProxyType(
    {each.name: each.metadata[_KEY] for each in fields(SamplingFields)}
)
"""Each field's entry by its name."""

MODEL_DEFAULTS: Final = tuple(name for name, each in SAMPLING_FIELDS.items() if each.is_model_default)
"""Names of the fields that a model may have defaults for."""


@dataclass(frozen=True, slots=True)
class CompleteSamplingFields(SamplingFields[float, int]):
    """Sampling fields of which none is unset. A field that is not given is off."""

    def __post_init__(self) -> None:
        for name, each in SAMPLING_FIELDS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, each.off)


def values_of(fields_: SamplingFields[Any, Any]) -> dict[str, Any]:
    """Return the value of each field by its name."""
    return {name: getattr(fields_, name) for name in SAMPLING_FIELDS}
