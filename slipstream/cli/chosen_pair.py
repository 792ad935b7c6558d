"""The models that ``slipstream serve`` was asked for, by any of the names that it knows them by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.cli.flags import Given
from slipstream.cli.model_arguments import EMBEDDED

_NGRAM = "ngram"
_HEADS = ("medusa", "eagle3")
_METHODS = (_NGRAM, "draft_model", *_HEADS)
_CONFIG = "--speculative-config"
_CHOSEN_LENGTHS = "the verifier chooses how many hints of n-grams and heads each step verifies"


@dataclass(frozen=True, slots=True)
class ChosenPair:
    """A target and a draft, with the names of the flags that they come from."""

    target: str
    draft: str
    """Empty: none."""
    draft_length: str | None
    """Draft tokens that each step waits for; None: the verifier chooses."""
    target_flag: str
    draft_flag: str
    heads: str | None = None
    """Folder of the target's heads; None: none."""
    remark: str = ""
    """Line about a draft length that has no effect."""


def chosen_pair(positional: str | None, given: Given) -> ChosenPair:
    """Return the chosen pair. ValueError, which names the flags, if two of them differ or the JSON
    is wrong."""
    config = _speculative_config(given["speculative_config"])
    target_flag, target = _one({"MODEL": positional, "--model": given["model"], "--target": given["target"]}, EMBEDDED)
    drafts = {"--draft": given["draft"], "--speculative-model": given["speculative_model"]}
    heads = {"--heads": given["heads"]}
    is_of_heads = config.get("method") in _HEADS
    (heads if is_of_heads else drafts)[f"{_CONFIG} model"] = config.get("model")
    if config.get("method") == _NGRAM:
        drafts[f"{_CONFIG} method"] = ""
    elif "method" in config and "model" not in config:
        raise ValueError(f"{_CONFIG} needs a model beside method")
    draft_flag, draft = _one(drafts, EMBEDDED if target == EMBEDDED else "")
    lengths = {
        "--num-speculative-tokens": given["num_speculative_tokens"],
        f"{_CONFIG} num_speculative_tokens": config.get("num_speculative_tokens"),
    }
    length_flag, length = _one(lengths, "")
    remark = ""
    is_of_the_draft = draft and not (is_of_heads and length_flag.startswith(_CONFIG))
    if length not in ("", "0") and not is_of_the_draft:  # a step would verify hints of the draft alone
        remark = f"{length_flag} {length} has no effect: {_CHOSEN_LENGTHS}"
        length = ""
    return ChosenPair(target, draft, length or None, target_flag, draft_flag, _one(heads, "")[1] or None, remark)


def rank_count(given: Given) -> str | None:
    """Return the number of the target's ranks as it was given. ValueError, which names the flags,
    if two of them differ."""
    names = ("--tensor-parallel-size", "--target-tensor-parallel-size")
    return _one({name: given[name.lstrip("-").replace("-", "_")] for name in names}, "")[1] or None


def _one(given: Mapping[str, str | None], default: str) -> tuple[str, str]:
    """Return the value that was given, and the name that it has. ValueError if there are two."""
    found = {name: value for name, value in given.items() if value is not None}
    if len(set(found.values())) > 1:
        raise ValueError(f"{' and '.join(found)} differ: give one of them")
    return next(iter(found.items()), (next(iter(given)), default))


def _speculative_config(text: str | None) -> dict[str, str]:
    """Return what the JSON says, by its key. ValueError."""
    if text is None:
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{_CONFIG} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{_CONFIG} must be a JSON object, such as " + '{"model": "DRAFT"}')
    return {key: _config_value(key, value) for key, value in config.items()}


def _config_value(key: str, value: Any) -> str:
    match key, value:
        case "model", str() if value:
            return value
        case "num_speculative_tokens", int() if value >= 0 and not isinstance(value, bool):
            return str(value)
        case "method", str() if value in _METHODS:
            return value
        case "model", _:
            raise ValueError(f"{_CONFIG} model must be a model's directory, a hub id or a .gguf file")
        case "num_speculative_tokens", _:
            raise ValueError(f"{_CONFIG} num_speculative_tokens must be a whole number from 0")
        case "method", _:
            raise ValueError(
                f"{_CONFIG} method must be draft_model, medusa, eagle3, or ngram for no draft, but is {value!r}"
            )
    raise ValueError(f"{_CONFIG} knows model, num_speculative_tokens and method, but not {key}")
