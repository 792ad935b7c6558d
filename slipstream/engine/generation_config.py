"""The reader of a model's generation settings: generation_config.json, or a GGUF file's own keys.

Each key is followed, has no effect here, or is named in one warning at start. A value out of range
gets a warning too. It must not become an error of a request that never named it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.engine.checkpoint import GENERATION_CONFIG, one_line
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config_keys import SAMPLED_ONLY, UNFOLLOWED, WITHOUT_EFFECT
from slipstream.engine.generation_config_tokens import Tokens
from slipstream.sampling.rule import (
    LengthDefaults,
    SamplingDefaults,
    SamplingRule,
    sampling_violations,
)
from slipstream.sampling_fields import MAX_TEMPERATURE, MIN_TEMPERATURE, MODEL_DEFAULTS, SAMPLING_FIELDS

log = logging.getLogger(__name__)

_LENGTHS = {
    "min_new_tokens": "min_token_count",
    "min_length": "min_length",
    "max_new_tokens": "max_token_count",
    "max_length": "max_length",
}
_TOKENS = ("eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")
_LEAST_TOP_P = 1e-9
"""transformers' meaning of a top_p of 0: only the likeliest token."""

_MOST_TOP_K = 2**31 - 1
"""Largest value that fits the wire. No vocabulary is larger."""

_MAX_SHOWN = 100
"""Longest value in a warning, in characters."""

_GGUF = "general.sampling."
_GGUF_NAMES = {field.gguf_key: name for name, field in SAMPLING_FIELDS.items() if field.gguf_key}
_GGUF_UNFOLLOWED = (
    "sequence",
    "xtc_probability",
    "xtc_threshold",
    "penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The settings that are followed, and warnings about the others."""

    end_token_ids: tuple[int, ...] = ()
    sampling: SamplingDefaults = field(default=SamplingDefaults())
    lengths: LengthDefaults = field(default=LengthDefaults())
    warnings: tuple[str, ...] = ()

    def log_warnings(self, name: object) -> None:
        """Log one warning if there is anything to report."""
        if self.warnings:
            log.warning("generation settings of %s: %s", name, "; ".join(self.warnings))


def read_generation_config(directory: Path) -> dict[str, Any]:
    """Return the values of a directory's generation_config.json, or nothing if there is none.
    UnsupportedModelError if it cannot be read."""
    path = directory / GENERATION_CONFIG
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UnsupportedModelError(f"{path} cannot be read: it must be an object, but is {_shown(values)}")
    return values


def read_gguf_generation_config(path: Path, said: Callable[[str], Any]) -> dict[str, Any]:
    """Return the values for a GGUF file: from generation_config.json beside it, or else from its
    own keys. ``said`` returns one key's value or None."""
    if values := read_generation_config(path.parent):
        return values
    values = {name: _number(value) for key, name in _GGUF_NAMES.items() if (value := said(f"{_GGUF}{key}")) is not None}
    values |= {
        f"{_GGUF}{key}": value for key in _GGUF_UNFOLLOWED if (value := said(f"{_GGUF}{key}")) not in (None, 0, "0")
    }
    if isinstance(temperature := values.get("temperature"), (int, float)) and temperature > 0:
        values["do_sample"] = True
    return values


def parse_generation_config(values: Mapping[str, Any], vocabulary_size: int, ends: Any = None) -> GenerationConfig:
    """Return what ``values`` mean for a vocabulary. ``ends`` are the model's own end tokens, used
    if ``values`` have none."""
    warnings: list[str] = []
    said_ends = values.get("eos_token_id")
    tokens = Tokens(values, vocabulary_size, ends if said_ends is None else said_ends, warnings)
    samples = _samples(values, warnings)
    sampling = _sampling(values, samples, tokens, warnings)
    lengths = _lengths(values, warnings)
    if tokens.begins_without_end:
        lengths = LengthDefaults(
            max(1, lengths.min_token_count), lengths.min_length, lengths.max_token_count, lengths.max_length
        )
    unfollowed = _unfollowed(values, samples)
    if unfollowed:
        warnings.append(f"not followed: {', '.join(unfollowed)}")
    return GenerationConfig(tokens.ends, sampling, lengths, tuple(warnings))


def _samples(values: Mapping[str, Any], warnings: list[str]) -> bool:
    said = values.get("do_sample")
    if not isinstance(said, (bool, type(None))):
        warnings.append(f"do_sample must be true or false, but is {_shown(said)}, and is left out")
    return said is True


def _sampling(values: Mapping[str, Any], samples: bool, tokens: Tokens, warnings: list[str]) -> SamplingDefaults:
    """Return the author's sampling settings: greedy unless the values ask for sampling."""
    names = MODEL_DEFAULTS if samples else ("repetition_penalty",)
    found: dict[str, Any] = {
        name: value for name in names if (value := _checked(name, values.get(name), warnings)) is not None
    }
    if samples:
        found.setdefault("temperature", 1.0)
    return SamplingDefaults(**found, logit_bias=tokens.biases, banned_token_ids=tokens.banned)


def _checked(name: str, value: Any, warnings: list[str]) -> float | None:
    """Return a number that is valid in every request, or None if the value is left out."""
    number: float
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        warnings.append(f"{name} must be a number, but is {_shown(value)}, and is left out")
        return None
    if name == "top_p" and value == 0:
        return _LEAST_TOP_P
    if name == "top_k":
        if isinstance(value, float) and not value.is_integer():
            warnings.append(f"{name} must be a whole number, but is {value}, and is left out")
            return None
        value = min(int(value), _MOST_TOP_K)
    violations = sampling_violations(SamplingRule(**{name: value}))
    if not violations:
        number = value
        return number
    number = min(max(value, MIN_TEMPERATURE), MAX_TEMPERATURE)
    if name == "temperature" and 0 < value < math.inf:
        warnings.append(f"{name} {violations[0].description}; it is taken as {number:g}")
        return number
    warnings.append(f"{name} {violations[0].description}, and is left out")
    return None


def _lengths(values: Mapping[str, Any], warnings: list[str]) -> LengthDefaults:
    found: dict[str, int] = {}
    for key, name in _LENGTHS.items():
        value = values.get(key)
        least = 1 if key.startswith("max") else 0
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            warnings.append(f"{key} must be a whole number from {least} on, but is {_shown(value)}, and is left out")
        else:
            found[name] = value
    return LengthDefaults(**found)


def _unfollowed(values: Mapping[str, Any], samples: bool) -> list[str]:
    """Return the keys that would change a text in transformers, or that are unknown here."""
    known = {"do_sample", *MODEL_DEFAULTS, *_LENGTHS, *_TOKENS, *WITHOUT_EFFECT}
    return [
        f"{key}={_shown(value)}"
        for key, value in sorted(values.items())
        if key not in known
        and value is not None
        and value not in ([], {}, *UNFOLLOWED.get(key, ()))
        and (samples or key not in SAMPLED_ONLY)
    ]


def _number(value: Any) -> Any:
    """Return a number from a GGUF file, which llama.cpp gives as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
