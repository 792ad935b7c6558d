"""Checks of a model directory before anything is loaded. An error is one line that says what would
be right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slipstream.engine.errors import UnsupportedModelError
from slipstream.extras import missing
from slipstream.home import expanded
from slipstream.hub.files import CODE_FILES, PICKLE_FILES, SMALL_FILES, WEIGHT_FILES
from slipstream.model_names import can_be_hub_id

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
UNREAD_FILES = {
    "adapter_config.json": "an adapter, which is not applied: merge it into the weights (peft's merge_and_unload) and give "
    "what that saves, or take the file away",
    "hf_quant_config.json": "weights that are quantised",
    "quantize_config.json": "weights that are quantised",
    "quant_config.json": "weights that are quantised",
}
"""Files beside the weights that change how the weights are to be computed, and that are not
read."""

_SCALES = re.compile(r"(weight_scale|weight_scale_inv|input_scale|qweight|qzeros|SCB|absmax|quant_map|weight_scale_2)$")
"""Names of tensors that scale weights or replace them."""

_SCALED_TYPES = ("F8_", "F6_", "F4", "I8", "U8", "I4", "U4")
"""Data types in safetensors of weights that need scales."""

_QUANTISED = (
    "which no target is served with: give the checkpoint it was made from, whose weights are bfloat16, float16 or float32, or "
    "make one of it: slipstream dequantise MODEL --out DIR"
)
_NO_DIRECTORY = "no model directory at {}: --model takes a directory, a hub id such as org/name, or 'embedded'"
_NO_WEIGHTS = f"{{}} has no weights: it needs {WEIGHTS}, or several such files and {INDEX}"
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Trust:
    """Parts of a checkpoint that are used although its author could run code or read data with
    them."""

    pickle: bool = False
    """Load weights from PICKLE if there are no safetensors. torch's restricted unpickler reads
    tensors and calls nothing else."""
    code: bool = False
    """Run the Python files that its configurations name (auto_map), with all rights of this
    process."""


NO_TRUST = Trust()


def some(names: Iterable[str]) -> str:
    """Return the first few of many names, as text."""
    ordered = sorted(names)
    rest = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def one_line(error: Exception) -> str:
    """Return a library's error message without its line breaks."""
    return " ".join(str(error).split())


def directory_of(name: str, *, weights: bool, trust: Trust = NO_TRUST) -> Path:
    """Return a model's directory: ``name`` itself, or the hub's cache after the hub was asked.

    UnsupportedModelError if there is no such directory and no such model. Without ``weights`` only
    the small files are there.
    """
    directory = expanded(name)
    if directory.is_dir():
        return directory
    if directory.exists():
        raise UnsupportedModelError(
            f"{name} is a file; a model is a directory with {CONFIG}, {WEIGHTS} and tokenizer.json"
        )
    if not can_be_hub_id(name):
        raise UnsupportedModelError(_NO_DIRECTORY.format(name))
    if command := missing("hub"):
        raise UnsupportedModelError(f"no model directory at {name}, and the hub needs huggingface_hub: {command}")
    from huggingface_hub.errors import LocalEntryNotFoundError  # this import takes a fifth of a second

    from slipstream.hub.download import download, explained

    patterns = [*SMALL_FILES, *(CODE_FILES if trust.code else ())]
    if weights:
        patterns += [*WEIGHT_FILES, *(PICKLE_FILES if trust.pickle else ())]
    try:
        return download(name, patterns)
    except LocalEntryNotFoundError as error:
        why = "and no such model in the hub's cache here (the hub cannot be reached, or HF_HUB_OFFLINE is set)"
        raise UnsupportedModelError(f"no model directory at {name}, {why}") from error
    except Exception as error:  # the hub's refusals, the network's failures, a full disk
        raise UnsupportedModelError(
            f"no model directory at {name}, and none from the hub: {explained(error, name)}"
        ) from error


def check_config(directory: Path, name: str, *, weights: bool = True, quantised: bool = False) -> None:
    """Raise UnsupportedModelError unless a directory has a model's config.json.

    Without ``weights`` it does not matter how they are stored: another process loads them. With
    ``quantised`` they may be quantised as config.json says.
    """
    path = directory / CONFIG
    says_how = quantised and quantisation_in(directory) is not None
    for file, what in UNREAD_FILES.items():
        if weights and (directory / file).exists() and not (says_how and "adapter" not in file):
            why = what if "adapter" in file else f"{what}, {_QUANTISED}"
            raise UnsupportedModelError(f"{name} has {file} and so {why}")
    if not path.exists():
        raise UnsupportedModelError(f"{name} has no {CONFIG}: it is not a transformers model directory")
    config = _json(path, name)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UnsupportedModelError(f"{CONFIG} of {name} is not a model's: it names no model_type")
    if (
        weights and "transformers_weights" in config
    ):  # it would be loaded instead of the checked files, even if it is a pickle
        raise UnsupportedModelError(
            f"{CONFIG} of {name} names its weights' file (transformers_weights), which is not supported: call it {WEIGHTS}"
        )
    if weights and not quantised:
        refuse_quantised(config.get("quantization_config"), name)
    if (directory / GENERATION_CONFIG).exists():
        _json(directory / GENERATION_CONFIG, name)  # transformers would use its own defaults if this fails


def quantisation_in(directory: Path) -> dict[str, Any] | None:
    """Return what a directory's config.json says about quantised weights; None if it says nothing,
    or cannot be read."""
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    said = config.get("quantization_config") if isinstance(config, dict) else None
    return said if isinstance(said, dict) and said else None


def is_quantised(name: str, trust: Trust = NO_TRUST) -> bool:
    """Return True if the config.json of a model directory or hub id says how its weights are
    quantised. UnsupportedModelError if there is no such model."""
    return quantisation_in(directory_of(name, weights=False, trust=trust)) is not None


def refuse_quantised(quantisation: Any, name: str) -> None:
    """Raise UnsupportedModelError if a config says how weights are quantised."""
    if isinstance(quantisation, dict) and quantisation:
        method = quantisation.get("quant_method", "by a method it does not name")
        raise UnsupportedModelError(f"{name} is quantised ({method}), {_QUANTISED}")


def told_of_unread(class_name: str, keys: Iterable[str]) -> str:
    """Return what is to be told of a config.json with keys that transformers' class does not
    read."""
    return (
        f"has keys that transformers' {class_name} does not read, and neither does this service: "
        f"{', '.join(sorted(keys))}"
    )


def check_weights(directory: Path, name: str, trust: Trust = NO_TRUST, *, quantised: bool = False) -> bool:
    """Raise UnsupportedModelError unless a directory's weights are whole safetensors files, or a
    trusted pickle, and plain or ``quantised``. Only headers are read. Returns True for
    safetensors."""
    if (directory / WEIGHTS).exists():
        _check_file(directory / WEIGHTS, name, quantised)
    elif (directory / INDEX).exists():
        for file in _shards(directory, INDEX, name):
            _check_file(directory / file, name, quantised)
    elif trust.pickle and (directory / PICKLE).exists():
        return False
    elif trust.pickle and (directory / PICKLE_INDEX).exists():
        _shards(directory, PICKLE_INDEX, name)
        return False
    else:
        pickled = [path.name for pattern in _PICKLED for path in directory.glob(pattern)]
        if pickled:
            raise UnsupportedModelError(
                f"{name} has its weights in {some(pickled)}, but only safetensors are loaded, because a pickle can run any "
                "code: load it once in transformers and save it with save_pretrained, or trust it with --allow-pickle, which "
                f"takes {PICKLE}"
            )
        raise UnsupportedModelError(_NO_WEIGHTS.format(name))
    return True


def weight_files(directory: Path, name: str) -> list[Path]:
    """Return a directory's safetensors files. UnsupportedModelError if one is not there."""
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    if not (directory / INDEX).exists():
        raise UnsupportedModelError(_NO_WEIGHTS.format(name))
    return [directory / file for file in sorted(_shards(directory, INDEX, name))]


def _shards(directory: Path, index_file: str, name: str) -> set[str]:
    """Return the files that an index names. All of them exist."""
    index = _json(directory / index_file, name)
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where:
        raise UnsupportedModelError(f"{index_file} of {name} has no weight_map: copy or download it again")
    files = set(map(str, where.values()))
    absent = [file for file in files if not (directory / file).exists()]
    if absent:
        raise UnsupportedModelError(
            f"{name} lacks {len(absent)} of the files that its {index_file} names: {some(absent)}; copy or download it again"
        )
    return files


def _check_file(path: Path, name: str, quantised: bool) -> None:
    """Read the header of a safetensors file and compare the file's size with it. Any other file
    would be unpickled, so it is refused."""
    if path.suffix != ".safetensors":
        raise UnsupportedModelError(
            f"{INDEX} of {name} names {path.name}, but only safetensors are loaded: copy or download it again"
        )
    try:
        with safe_open(path, framework="np") as file:
            scaled = [key for key in file.keys() if _SCALES.search(key) or _is_scaled(key, file)]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UnsupportedModelError(
            f"{path.name} of {name} is truncated or not a safetensors file ({one_line(error)}): copy or download it again"
        ) from error
    if scaled and not quantised:
        raise UnsupportedModelError(f"{name} is quantised, by its tensors {some(scaled)}, {_QUANTISED}")


def _is_scaled(key: str, file: Any) -> bool:
    return key.endswith("weight") and str(file.get_slice(key).get_dtype()).startswith(_SCALED_TYPES)


def _json(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsupportedModelError(f"{path.name} of {name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnsupportedModelError(f"{path.name} of {name} is not JSON: {one_line(error)}") from error


def refuse_without_torch(name: str, reason: str) -> None:
    """Raise UnsupportedModelError where torch and transformers are not installed."""
    if command := missing("torch"):
        raise UnsupportedModelError(f"{name} needs torch and transformers, for {reason}: {command}")
