"""Writes a plain bfloat16 checkpoint of a quantised one.

The new folder has another name until it is whole. One matrix is computed at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from slipstream.dequantising.scheme import Scheme, Weight
from slipstream.dequantising.schemes import scheme_of
from slipstream.dequantising.stored import Stored, Writer, stored_in
from slipstream.engine.checkpoint import (
    CONFIG,
    INDEX,
    UNREAD_FILES,
    check_config,
    check_weights,
    directory_of,
    one_line,
    weight_files,
)
from slipstream.engine.compiled.safetensors_file import rounded
from slipstream.engine.errors import UnsupportedModelError
from slipstream.hub.files import CODE_FILES, SMALL_FILES

FILE_BYTES = 4 * 2**30
"""Bytes of the tensors in a file. So much is held in memory."""

_UNFINISHED = ".unfinished"
_KEY = "quantization_config"

_COPIED = (*SMALL_FILES, *CODE_FILES, "additional_chat_templates/*.jinja")

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
    place = out.resolve()  # or the new folder could not take a link's place at the end
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UnsupportedModelError(f"--out {out} exists already: name a new folder")
    directory = directory_of(name, weights=True)
    check_config(directory, name, quantised=True)
    check_weights(directory, name, quantised=True)
    config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    scheme = _scheme_of(config, name)
    _remove_empty(place, out)
    try:
        with _workplace(place.with_name(f"{place.name}{_UNFINISHED}"), out) as unfinished:
            _copy_small_files(directory, unfinished, config)
            total = _write_weights(scheme, stored_in(weight_files(directory, name)), unfinished, report, file_bytes)
            unfinished.rename(place)
    except (OSError, SafetensorError) as error:  # a full disk is either
        raise UnsupportedModelError(f"--out {out} cannot be written: {one_line(error)}") from error
    return total


def _remove_empty(place: Path, out: Path) -> None:
    """Make room for the new folder now, because it may take hours. UnsupportedModelError if an
    empty folder cannot be replaced, as a mount point."""
    try:
        if place.exists():
            place.rmdir()
    except OSError as error:
        raise UnsupportedModelError(
            f"--out {out} cannot be replaced ({error.strerror}): name a folder in it"
        ) from error


@contextmanager
def _workplace(folder: Path, out: Path) -> Iterator[Path]:
    """Make an empty folder that no other process writes. It is gone afterwards, unless it has
    another name by then. OSError; UnsupportedModelError if another process writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnsupportedModelError(f"--out {out} is being written by another process") from error
        try:
            for left in folder.iterdir():  # by a run that was killed
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _scheme_of(config: dict[str, Any], name: str) -> Scheme:
    text = config.get("text_config")
    quantisation = config.get(_KEY) or (text.get(_KEY) if isinstance(text, dict) else None)
    if not isinstance(quantisation, dict) or not quantisation:
        raise UnsupportedModelError(f"{CONFIG} of {name} has no {_KEY}: the checkpoint is plain already, or not whole")
    try:
        return scheme_of(quantisation)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{name} cannot be dequantised: {error}") from error


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


def _copy_small_files(directory: Path, out: Path, config: dict[str, Any]) -> None:
    for path in {path for pattern in _COPIED for path in directory.glob(pattern)}:
        if path.name not in (CONFIG, INDEX, *UNREAD_FILES) and not path.is_dir():
            copy = out / path.relative_to(directory)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(_content(path))
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            part.pop(_KEY, None)
            for key in {"dtype", "torch_dtype"} & part.keys():
                part[key] = "bfloat16"
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error.strerror}") from error
