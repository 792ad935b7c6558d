"""The settings by which answers in a folder were asked for: a private file beside the shards, with
a line of JSON for each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.distilling.records import RecordsError

_FILE = ".asked"


def note_asked(folder: Path, asked: Mapping[str, Any]) -> None:
    """Note settings by which answers of a folder are asked for, unless they are noted. RecordsError
    if that cannot be written."""
    if dict(asked) in read_asked(folder):
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(folder / _FILE, flags, 0o600), "w") as file:
            file.write(json.dumps(asked) + "\n")
    except OSError as error:
        raise RecordsError(f"{folder / _FILE} cannot be written: {error.strerror or error}") from error


def read_asked(folder: Path) -> list[dict[str, Any]]:
    """Return what was noted in a folder. It is empty for traffic. RecordsError if it cannot be
    read."""
    try:
        lines = (folder / _FILE).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RecordsError(f"{folder / _FILE} cannot be read: {error}. Delete it to go on without") from error
