"""What a model's maker says of generating with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from slipstream.engine.checkpoint import GENERATION_CONFIG, one_line
from slipstream.engine.errors import UnsupportedModelError
from slipstream.sampling.rule import SamplingDefaults


def generation_of(directory: Path) -> tuple[tuple[int, ...], SamplingDefaults]:
    """End tokens, none if it does not say, and sampling defaults by a directory's generation_config.json, if it has one.
    UnsupportedModelError if that cannot be read."""
    if not (directory / GENERATION_CONFIG).exists():
        return (), SamplingDefaults()
    try:
        generation = GenerationConfig.from_pretrained(directory)
    except Exception as error:  # any of transformers'
        raise UnsupportedModelError(f"{directory / GENERATION_CONFIG} cannot be read: {one_line(error)}") from error
    return end_token_ids(generation, None), sampling_defaults(generation)


def end_token_ids(generation: GenerationConfig, config: Any) -> tuple[int, ...]:
    """What ends a text: by ``generation``, or else by the model's ``config``."""
    ids = generation.eos_token_id if generation.eos_token_id is not None else getattr(config, "eos_token_id", None)
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


def sampling_defaults(generation: GenerationConfig) -> SamplingDefaults:
    """How its maker would have it sampled."""

    def given(name: str, default: float) -> float:
        value = getattr(generation, name, None)
        return default if value is None else value

    penalty = given("repetition_penalty", 1.0)
    if not generation.do_sample:
        return SamplingDefaults(repetition_penalty=penalty)
    return SamplingDefaults(
        temperature=given("temperature", 1.0),
        top_k=int(given("top_k", 0)),
        top_p=given("top_p", 1.0),
        min_p=given("min_p", 0.0),
        typical_p=given("typical_p", 1.0),
        repetition_penalty=penalty,
    )
