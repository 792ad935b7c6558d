"""The folder of an unfinished training: its checkpoint, with which a stopped training goes on, and
the new draft until it is whole."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError

from slipstream.distilling.errors import DistilError
from slipstream.distilling.private_folder import LOCK, claim
from slipstream.engine.checkpoint import one_line

_UNFINISHED = ".unfinished"
_STATE = "state.pt"
_PLAN = "plan.json"
_SHARDS = "shards"


class Workplace:
    """The folder ``OUT.unfinished``, which becomes ``OUT``. A checkpoint belongs to a *plan*: the
    settings and the digest of the draft, which a resumed training must share, and the shards that
    it goes on to read."""

    shards: dict[str, str] | None = None
    """The sha256 of each shard of the training that goes on, by name; None if one begins."""

    def __init__(self, out: Path) -> None:
        """Take or make the folder. DistilError if it cannot be made; RecordsError if another
        training has it, or if other users may reach it."""
        if not out.name:  # the current folder, or the root
            raise DistilError(f"--out {out} exists already: name a new folder")
        self.out = out
        self.folder = out.with_name(f"{out.name}{_UNFINISHED}")
        self._plan: dict[str, Any] = {}
        try:
            self._lock = claim(self.folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another training take the folder. Remove it if there is no checkpoint in it."""
        with suppress(OSError):  # what is not ours stays
            if not (self.folder / _STATE).exists():
                for name in (_PLAN, LOCK):
                    (self.folder / name).unlink(missing_ok=True)
                self.folder.rmdir()
        os.close(self._lock)

    def take(self, plan: Mapping[str, Any]) -> None:
        """Go on with the training that was begun here, if there is one. DistilError if it was begun
        with another plan, or if ``out`` exists."""
        if self.out.exists() or self.out.is_symlink():
            raise DistilError(f"--out {self.out} exists already: name a new folder")
        self._plan = json.loads(json.dumps(plan))
        try:
            if (self.folder / _STATE).exists():
                self._compare()
        except OSError as error:
            raise self._unwritable(error) from error

    def begin(self, shards: Mapping[str, str]) -> None:
        """Note the sha256 of the shards of a training that begins, by name. DistilError."""
        try:
            (self.folder / _PLAN).write_text(json.dumps(self._plan | {_SHARDS: {**shards}}), encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from error

    def _compare(self) -> None:
        path = self.folder / _PLAN
        try:
            begun = json.loads(path.read_text(encoding="utf-8"))
            self.shards = dict(begun[_SHARDS])
        except (ValueError, LookupError, TypeError) as error:
            raise DistilError(f"{path} is damaged: delete {self.folder} to begin again") from error
        other = [f"{key} {begun.get(key)}" for key, value in self._plan.items() if begun.get(key) != value]
        if other:
            raise DistilError(
                f"{self.folder} holds a training that was begun with other values ({', '.join(other)}): go on with them, "
                "delete the folder, or name another --out"
            )

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint in place of the last one. DistilError."""
        unfinished = self.folder / f"{_STATE}{_UNFINISHED}"
        try:
            unfinished.touch(mode=0o600)
            torch.save(dict(state), unfinished)
            unfinished.replace(self.folder / _STATE)
        except (OSError, RuntimeError) as error:  # torch raises either on a full disk
            unfinished.unlink(missing_ok=True)
            raise self._unwritable(error) from error

    def load(self) -> dict[str, Any] | None:
        """Return the last checkpoint; None if there is none. DistilError if it is damaged."""
        path = self.folder / _STATE
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
            raise DistilError(f"{path} is damaged: delete {self.folder} to begin again") from error
        return state

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Give a folder for the draft's files. It becomes ``out`` if no error comes, for its owner
        alone: a draft can repeat the records. DistilError if something cannot be written."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700)
            yield folder
            for path in folder.rglob("*"):
                path.chmod(0o700 if path.is_dir() else 0o600)
            folder.rename(self.out)
        except (OSError, SafetensorError) as error:  # a full disk is either
            shutil.rmtree(folder, ignore_errors=True)
            raise self._unwritable(error) from error
        shutil.rmtree(self.folder, ignore_errors=True)

    def _unwritable(self, error: Exception) -> DistilError:
        # torch tells of a full disk by the position in its file
        hint = "is the disk full? torch says: " if isinstance(error, RuntimeError) else ""
        return DistilError(f"--out {self.out} cannot be written: {hint}{one_line(error)}")
