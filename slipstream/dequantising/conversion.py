"""Writes a plain bfloat16 checkpoint of a quantised one.

The new folder has another name until it is whole. One matrix is computed at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from slipstream.dequantising.scheme import Scheme, Weight
from slipstream.dequantising.schemes import scheme_of
from slipstream.dequantising.stored import Stored, Writer, stored_in
from slipstream.engine.checkpoint import CONFIG, INDEX, UNREAD_FILES, directory_of, one_line, weight_files
from slipstream.engine.compiled.safetensors_file import rounded
from slipstream.engine.errors import UnsupportedModelError
from slipstream.hub.files import CODE_FILES, SMALL_FILES

FILE_BYTES = 4 * 2**30
"""Bytes of the tensors in a file. So much is held in memory."""

_UNFINISHED = ".unfinished"
_KEY = "quantization_config"

_DROPPED = ("input_scale", "activation_scale", "input_zero_point", "k_scale", "v_scale", "q_scale", "weight_format")
"""Ends of names: scales of activations and of the KV cache, and what says how int8 is stored."""

Report = Callable[[int, int], None]
"""Is told how many of the tensors are written."""


def dequantise(name: str, out: Path, report: Report, file_bytes: int = FILE_BYTES) -> int:
    """Write the checkpoint ``name`` with plain weights into the folder ``out``, and return their
    bytes. UnsupportedModelError says what cannot be read or written.

    Each weight is computed in float32 and rounded to bfloat16. Activations are not quantised in
    the new checkpoint, even if the config says so.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UnsupportedModelError(f"--out {out} exists already: name a new folder")
    directory = directory_of(name, weights=True)
    config = _read_config(directory, name)
    quantisation = config.get(_KEY) or config.get("text_config", {}).get(_KEY)
    if not isinstance(quantisation, dict) or not quantisation:
        raise UnsupportedModelError(f"{CONFIG} of {name} has no {_KEY}: the checkpoint is plain already, or not whole")
    try:
        scheme = scheme_of(quantisation)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{name} cannot be dequantised: {error}") from error
    unfinished = out.with_name(f"{out.name}{_UNFINISHED}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        total = _write_weights(scheme, stored_in(weight_files(directory, name)), unfinished, report, file_bytes)
        _copy_small_files(directory, unfinished, config)
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    except (OSError, SafetensorError) as error:  # a full disk is either
        raise UnsupportedModelError(f"--out {out} cannot be written: {one_line(error)}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return total


def _write_weights(
    scheme: Scheme, stored: Mapping[str, Stored], directory: Path, report: Report, file_bytes: int
) -> int:
    made = [*scheme.weights(stored.keys())]
    used = {part for weight in made for part in weight.made_of}
    plain = [name for name in sorted(stored) if name not in used and not name.endswith(_DROPPED)]
    if not made:
        raise UnsupportedModelError("no tensor of the checkpoint is quantised as its config says")
    writer, count = Writer(directory, file_bytes), len(made) + len(plain)
    for done, weight in enumerate(made, 1):
        writer.add(weight.name, _dequantised(scheme, weight, stored))
        report(done, count)
    for done, name in enumerate(plain, len(made) + 1):
        writer.add(name, stored[name].as_bfloat16())
        report(done, count)
    return writer.finish()


def _dequantised(scheme: Scheme, weight: Weight, stored: Mapping[str, Stored]) -> np.ndarray:
    parts = []
    for numbers in scheme.dequantised(weight, {name: stored[name].numbers() for name in weight.made_of}):
        if not np.isfinite(numbers).all():
            raise UnsupportedModelError(
                f"{weight.name} has numbers that are NaN or infinite: copy or download it again"
            )
        parts.append(rounded(numbers))
    return np.concatenate(parts)


def _read_config(directory: Path, name: str) -> dict[str, Any]:
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{CONFIG} of {name} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedModelError(f"{CONFIG} of {name} is not a model's")
    return config


def _copy_small_files(directory: Path, out: Path, config: dict[str, Any]) -> None:
    for path in {path for pattern in (*SMALL_FILES, *CODE_FILES) for path in directory.glob(pattern)}:
        if path.name not in (CONFIG, INDEX, *UNREAD_FILES):
            shutil.copyfile(path, out / path.name)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            part.pop(_KEY, None)
            for key in {"dtype", "torch_dtype"} & part.keys():
                part[key] = "bfloat16"
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
