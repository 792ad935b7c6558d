"""The files of heads: a config.json and safetensors. Pickled files are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from slipstream.engine.checkpoint import CONFIG, INDEX, WEIGHTS, one_line, some
from slipstream.engine.compiled.safetensors_file import StoredTensor, stored_tensors, tensors_in
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.model import ModelFacts
from slipstream.engine.model_fingerprint import SAMPLED_VALUES
from slipstream.sampling.kernel import Floats32

_OUTPUTS = ("lm_head.weight", "model.embed_tokens.weight")
"""Names of a target's output matrix; the second one where both are tied."""


class HeadTarget(NamedTuple):
    """The target that heads are loaded for."""

    facts: ModelFacts
    hidden: HiddenStates
    directory: Path | None
    """The checkpoint's folder; None if it has none, such as a GGUF file."""

    def output_matrix(self) -> Floats32:
        """Return its output matrix ``[vocabulary, hidden size]``. UnsupportedModelError if it
        cannot be read."""
        stored = None if self.directory is None else stored_tensors(self.directory)
        tensor = next((stored[name] for name in _OUTPUTS if name in stored), None) if stored else None
        if tensor is None:
            raise UnsupportedModelError(
                f"the heads use the target's output matrix, and it has no {_OUTPUTS[0]} to read"
            )
        matrix: Floats32 = tensor.read("float32")
        return matrix


def read_config(directory: Path) -> dict[str, Any]:
    """Return a folder's config.json. UnsupportedModelError says what is wrong with it."""
    if not directory.is_dir():
        raise UnsupportedModelError(f"--heads {directory} is no folder: it needs {CONFIG} and safetensors")
    try:
        values = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedModelError(f"--heads {directory} has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{CONFIG} of --heads {directory} cannot be read: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UnsupportedModelError(f"{CONFIG} of --heads {directory} must be a JSON object")
    return values


def read_tensors(directory: Path, names: tuple[str, ...] = (WEIGHTS,)) -> dict[str, StoredTensor]:
    """Return the tensors of the first of these files that a folder has, or of the files that its
    index names. UnsupportedModelError if there are none, or none that can be read."""
    paths = next(([directory / name] for name in names if (directory / name).exists()), None) or _indexed(directory)
    if not paths:
        pickled = [path.name for pattern in ("*.pt", "*.bin", "*.pth") for path in directory.glob(pattern)]
        pickles = f", and {some(pickled)} is pickled, which may run code: save it as safetensors" if pickled else ""
        raise UnsupportedModelError(f"--heads {directory} has no {' or '.join(names)}{pickles}")
    for path in paths:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise UnsupportedModelError(f"{path} cannot be read: {one_line(error)}") from error
    found = tensors_in(paths)
    if found is None:
        raise UnsupportedModelError(
            f"--heads {directory} has weights of types that are not read here, such as 8-bit ones"
        )
    return found


def _indexed(directory: Path) -> list[Path]:
    if not (directory / INDEX).exists():
        return []
    try:
        names = {
            str(name) for name in json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        }
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnsupportedModelError(f"{INDEX} of --heads {directory} cannot be read: {error!r}") from error
    if foreign := [name for name in names if Path(name).name != name]:
        raise UnsupportedModelError(f"{INDEX} of --heads {directory} names files elsewhere: {some(foreign)}")
    return [directory / name for name in sorted(names)]


def floats_of_all(tensors: Mapping[str, StoredTensor], names: Mapping[str, str]) -> dict[str, Floats32]:
    """Return float32 weights: of ``names``, by what they are called here, the tensors so called.
    UnsupportedModelError names those that are not finite."""
    weights: dict[str, Floats32] = {name: tensors[stored].read("float32") for name, stored in names.items()}
    if faulty := [name for name, weight in weights.items() if not np.isfinite(weight).all()]:
        raise UnsupportedModelError(f"the heads have weights that are NaN or infinite, in {some(faulty)}")
    return weights


def source_id_of(weights: Mapping[str, Floats32]) -> int:
    """Return an id of 64 bits that differs between weights."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.shape} ".encode())
        digest.update(np.ascontiguousarray(weight.reshape(-1)[:: max(1, weight.size // SAMPLED_VALUES)]).tobytes())
    return int.from_bytes(digest.digest()[:8], "big")
