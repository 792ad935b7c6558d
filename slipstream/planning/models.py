"""Read a model's shape from a folder, a file, the hub's cache, or the shapes in the package."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.extras import require
from slipstream.home import expanded
from slipstream.planning.errors import PlanError
from slipstream.planning.families import Decoder
from slipstream.planning.shape import ModelShape

_CONFIG = "config.json"
_MOST_BYTES = 16 * 2**20
"""Largest configuration that is read."""
_ENDINGS = re.compile(r"-(instruct|it|chat|hf|v0\.\d|4k|128k|\d{4})(?=-|$)")


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of the shapes in the package, by name."""
    content: dict[str, dict[str, Any]] = tomllib.loads(
        Path(__file__).with_name("known.toml").read_text(encoding="utf-8")
    )
    return content


def model_shape(name: str) -> ModelShape:
    """Return the shape of a model. PlanError if there is none; UnsupportedModelError if its GGUF
    file is damaged."""
    if not name.strip():
        raise PlanError("the name is empty; give a folder, a config.json, a GGUF file, a hub id or a known name")
    path = expanded(name)
    if path.is_dir():
        if not (path / _CONFIG).is_file():
            raise PlanError(f"{name} has no {_CONFIG}")
        return _of_file(path / _CONFIG, name)
    if path.is_file():
        return _of_gguf(path, name) if path.suffix == ".gguf" else _of_file(path, name)
    if path.suffix in (".gguf", ".json") or name.startswith(("/", "./", "../", "~")):
        raise PlanError(f"there is no file or folder {name}")
    if (cached := _cached_config(name)) is not None:
        return _of_file(cached, name)
    if (entry := _known_entry(name)) is not None:
        return _of_config(entry["config"], name, "the shapes in the package")
    raise PlanError(
        f"{name} is no folder or file here, is not in the hub's cache, and is not a known name: "
        f"{', '.join(sorted(known_models()))}"
    )


def hub_id(name: str) -> str:
    """Return the hub's id of a known name, or the name itself."""
    entry = _known_entry(name)
    return str(entry["hub"]) if entry else name


def _known_entry(name: str) -> Mapping[str, Any] | None:
    for entry in known_models().values():
        if name == entry["hub"]:
            return entry
    short = _shortened(name)
    return next((entry for key, entry in known_models().items() if _shortened(key) == short), None)


def _shortened(name: str) -> str:
    """Return a name without its owner and the endings that do not change the shape."""
    return _ENDINGS.sub("", name.lower().rpartition("/")[2].removeprefix("meta-"))


def _cached_config(name: str) -> Path | None:
    """Return the config.json of a hub id if the hub's cache here has it."""
    if find_spec("huggingface_hub") is None or name.count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, _CONFIG)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def _of_gguf(path: Path, name: str) -> ModelShape:
    require("slipstream", "compiled")
    from slipstream.planning.gguf_shape import gguf_shape  # what reads the header needs the extra

    return gguf_shape(path, name)


def _of_file(path: Path, name: str) -> ModelShape:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise PlanError(f"{path} is too large for a {_CONFIG}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise PlanError(f"{path} is not a JSON object")
    return _of_config(config, name, str(path))


def _of_config(config: Mapping[str, Any], name: str, source: str) -> ModelShape:
    decoder = Decoder(config, name)
    try:
        return ModelShape(
            name=name,
            family=decoder.model_type,
            source=source,
            weights=decoder.weights(),
            layers=decoder.kv_layers(),
            latent_values=decoder.latent_values,
            kv_head_count=decoder.kv_head_count,
            head_count=decoder.head_count,
            hidden_size=decoder.hidden_size,
            query_size=decoder.query_size,
            vocabulary_size=decoder.vocabulary_size,
            context_length=decoder.number("max_position_embeddings", 2**20),
            format=_format(config, name),
            is_divided=decoder.family.is_divided,
            expert_count=decoder.expert_count,
            experts_per_token=decoder.number("num_experts_per_tok") if decoder.expert_count else 0,
        )
    except (TypeError, AttributeError, KeyError, OverflowError) as error:
        raise PlanError(f"{name}: its configuration has an entry of a wrong kind: {error}") from error


def _format(config: Mapping[str, Any], name: str) -> str:
    """Return the format of the weights that a checkpoint stores."""
    said = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not said:
        return "bfloat16"
    method = said.get("quant_method")
    bits = said.get("bits") or said.get("w_bit")
    if method == "compressed-tensors":
        groups = said.get("config_groups") or {}
        bits = next((group["weights"]["num_bits"] for group in groups.values()), None)
    if method in ("fp8", "fbgemm_fp8") or (method == "compressed-tensors" and bits == 8):
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq", "compressed-tensors") and bits == 4:
        return "int4"
    if method == "bitsandbytes" and said.get("load_in_4bit"):
        return "int4"
    raise PlanError(
        f"{name}: weights in {method} of {bits} bits cannot be planned with; known are fp8, awq, gptq and mxfp4"
    )
