"""Models that the command line is given: a wrong one is refused by its option's name, before any
service starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from slipstream.errors import SlipstreamError
from slipstream.extras import missing
from slipstream.model_names import can_be_hub_id
from slipstream.reasons import Reason

EMBEDDED = "embedded"
ARITHMETIC = "arithmetic:"
_GGUF = ".gguf"
_CONFIG = "config.json"
_RIGHT = "give a model's directory, a .gguf file, a hub id such as org/name, or 'embedded'"


class WrongModelError(SlipstreamError):
    """No model can be where an option says."""

    reason = Reason.UNSUPPORTED_MODEL


def refuse_wrong_model(option: str, name: str) -> None:
    """Raise WrongModelError unless a model can be there. Only names and directories are looked at:
    the service that loads the model checks the rest, and asks the hub."""
    if name == EMBEDDED:
        if command := missing("embedded"):
            raise WrongModelError(f"{option} {name}: the embedded pair is not installed: {command}")
        return
    if name.startswith(ARITHMETIC):
        return
    if not name:
        raise WrongModelError(f"{option} is empty: {_RIGHT}")
    if fault := _fault(name):
        raise WrongModelError(f"{option} {name}: {fault}")


def _fault(name: str) -> str:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return _fault_of_directory(path)
        if path.exists():
            return _fault_of_file(path)
    except (OSError, RuntimeError) as error:  # a folder that may not be read, a user without a home
        why = error.strerror or "" if isinstance(error, OSError) else str(error).rstrip(".")
        return f"{why.lower()}; {_RIGHT}"
    if name.endswith(_GGUF) or not can_be_hub_id(name):
        return f"{os.strerror(errno.ENOENT).lower()}; {_RIGHT}"
    return ""


def _fault_of_directory(path: Path) -> str:
    if (path / _CONFIG).exists():
        return ""
    files = sorted(file.name for file in path.iterdir() if file.name.endswith(_GGUF))
    if files:
        return f"the directory has no {_CONFIG}, but .gguf files: give one of them, such as {path / files[0]}"
    return f"the directory has no {_CONFIG}, so it is not a model's; {_RIGHT}"


def _fault_of_file(path: Path) -> str:
    if not os.access(path, os.R_OK):
        return "you may not read this file"
    if path.suffix == _GGUF:
        return ""
    if (path.parent / _CONFIG).exists():
        return f"a file of a model: give its directory, {path.parent}"
    return f"neither a directory nor a .gguf file; {_RIGHT}"
