"""The facts about what a stock engine serves, read from the model's own small files.

The weights lie on the server's machine. Here are its config, its generation settings and its
tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.engine.checkpoint import CONFIG, directory_of, one_line
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config import parse_generation_config, read_generation_config
from slipstream.engine.structure_matchers import StructureMatchers
from slipstream.processors import Processors
from slipstream.sampling.partial.refused import without_refused
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults
from slipstream.stock.protocol import StockFacts

_UNKNOWN_DTYPE = "unknown"


@dataclass(slots=True)
class StockModel:
    """Facts about the model that a stock engine computes; `slipstream.engine.model.ModelFacts`."""

    architecture: str
    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    length_defaults: LengthDefaults
    dtype: str
    weights_fingerprint: str
    device: str
    caveats: tuple[str, ...]
    """Parts of its files that are not followed behind a stock engine."""


@dataclass(slots=True)
class StockServed:
    """Facts about what the worker of a stock engine serves; `slipstream.engine.worker.Served`."""

    model: StockModel
    context_length: int
    step_times: list[tuple[int, float]]
    caveats: tuple[str, ...]
    matchers: StructureMatchers = field(default_factory=StructureMatchers)
    page_size: int = 1
    mark: str = ""
    row_multiple: int = 1
    processors: Processors = field(default_factory=Processors)
    kv_token_count: int = 0


class ModelFiles:
    """The small files of a model directory or of a hub's model."""

    def __init__(self, name: str) -> None:
        """UnsupportedModelError if there are none, or if they cannot be read."""
        self.name = name
        self._directory = directory_of(name, weights=False)
        self._config = _read(self._directory / CONFIG)
        self._text_config: Mapping[str, Any] = {**self._config, **self._config.get("text_config", {})}
        size = self._text_config.get("vocab_size")
        if not isinstance(size, int) or size < 1:
            raise UnsupportedModelError(f"{self._directory / CONFIG} has no vocab_size, which --engine needs")
        self.vocabulary_size = size

    def model(self, facts: StockFacts) -> StockModel:
        """Return the facts about the model as a server serves it."""
        generation = parse_generation_config(
            read_generation_config(self._directory), self.vocabulary_size, self._text_config.get("eos_token_id")
        )
        generation.log_warnings(self.name)
        sampling, unfollowed = without_refused(generation.sampling)
        dtype = self._text_config.get("dtype") or self._text_config.get("torch_dtype") or _UNKNOWN_DTYPE
        architectures = self._config.get("architectures") or ["unknown"]
        said = [facts.engine, facts.model, self._config, list(generation.end_token_ids)]
        return StockModel(
            architecture=str(architectures[0]),
            vocabulary_size=self.vocabulary_size,
            context_length=facts.context_length,
            end_token_ids=generation.end_token_ids,
            sampling_defaults=sampling,
            length_defaults=generation.lengths,
            dtype=str(dtype),
            weights_fingerprint=hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest(),
            device=facts.engine,
            caveats=tuple(unfollowed),
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UnsupportedModelError(f"{path} cannot be read: it must be an object")
    return values
