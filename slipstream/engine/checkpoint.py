"""What a model directory must hold, looked at before anything is loaded. A fault is one line that says what would be right."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open

from slipstream.engine.errors import UnsupportedModelError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NAMED = 3
_HUB_SECONDS = 10.0


def some(names: Iterable[str]) -> str:
    """The first few of many names."""
    ordered = sorted(names)
    rest = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def one_line(error: Exception) -> str:
    """What a library's error says, without its line breaks."""
    return " ".join(str(error).split())


def check_config(name: str) -> None:
    """UnsupportedModelError unless ``name`` is a directory with a model's config.json, or a model the hub has."""
    directory = Path(name).expanduser()
    if directory.is_file():
        raise UnsupportedModelError(
            f"{name} is a file; a model is a directory with {CONFIG}, {WEIGHTS} and tokenizer.json"
        )
    if not directory.exists():
        _check_hub(name)
        return
    path = directory / CONFIG
    if not path.exists():
        raise UnsupportedModelError(f"{name} has no {CONFIG}: it is not a transformers model directory")
    config = _json(path, name)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UnsupportedModelError(f"{CONFIG} of {name} is not a model's: it names no model_type")
    if "auto_map" in config and "AutoConfig" in config["auto_map"]:
        raise UnsupportedModelError(
            f"{name} needs code of its own (auto_map), which is not run; only transformers' own classes can be served"
        )


def check_weights(name: str) -> None:
    """UnsupportedModelError unless a directory's weights are whole safetensors files. Reads only their headers."""
    directory = Path(name).expanduser()
    if not directory.exists():
        return  # the hub's: transformers downloads safetensors or says that there are none
    if (directory / WEIGHTS).exists():
        _tensor_names(directory / WEIGHTS, name)
    elif (directory / INDEX).exists():
        _check_shards(directory, name)
    else:
        pickled = [path.name for pattern in _PICKLED for path in directory.glob(pattern)]
        if pickled:
            raise UnsupportedModelError(
                f"{name} has its weights in {some(pickled)}, but only safetensors are loaded, since a pickle can run any "
                "code: load it once in transformers and save it with save_pretrained"
            )
        raise UnsupportedModelError(f"{name} has no weights: it needs {WEIGHTS}, or several such files and {INDEX}")


def _check_shards(directory: Path, name: str) -> None:
    index = _json(directory / INDEX, name)
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where:
        raise UnsupportedModelError(f"{INDEX} of {name} has no weight_map: copy or download it again")
    files = set(map(str, where.values()))
    absent = [file for file in files if not (directory / file).exists()]
    if absent:
        raise UnsupportedModelError(
            f"{name} lacks {len(absent)} of the files that its {INDEX} names: {some(absent)}; copy or download it again"
        )
    for file in files:
        _tensor_names(directory / file, name)


def _tensor_names(path: Path, name: str) -> None:
    """Opening reads the header and compares the file's size with it."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise UnsupportedModelError(
            f"{path.name} of {name} is truncated or no safetensors file ({one_line(error)}): copy or download it again"
        ) from error


def _json(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsupportedModelError(f"{path.name} of {name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnsupportedModelError(f"{path.name} of {name} is not JSON: {one_line(error)}") from error


def _check_hub(name: str) -> None:
    """Ask once, and with a deadline: transformers would ask for half a minute where there is no network."""
    try:
        if name.count("/") > 1 or name.startswith(("~", "/", ".")):
            raise HFValidationError
        if isinstance(try_to_load_from_cache(name, CONFIG), str):
            return
        if constants.HF_HUB_OFFLINE:
            why = "and no such model in the hub's cache here (HF_HUB_OFFLINE is set)"
        else:
            HfApi().model_info(name, timeout=_HUB_SECONDS)
            return
    except HFValidationError:
        raise UnsupportedModelError(
            f"no model directory at {name}: --model takes a directory, a hub id such as org/name, or 'embedded'"
        ) from None
    except HfHubHTTPError as error:
        why = f"and the hub gives no such model ({one_line(error).split(' (Request ID')[0]})"
    except Exception:  # any of its HTTP library's
        why = "and no such model in the hub's cache here (the hub cannot be reached)"
    raise UnsupportedModelError(f"no model directory at {name}, {why}: give a directory, or download the model first")
