"""The results of a run so far, in a directory. A run may be killed at any time: the next one
continues after the last finished cell."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

NO_TOKEN = -1
"""Value in place of a missing token."""

_CODE = ("slipstream", "orchestrator", "verifier_service", "draft_service", "proving")


def commit_of_tree() -> str:
    """Return the commit, and a hash of the changes if the code differs from it; "unknown" outside a
    repository."""
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout

    try:
        commit = git("rev-parse", "--short", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--", *_CODE)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else commit


@dataclass(slots=True)
class Generated:
    """A cell's turns in order: token ids int32 and their log-probabilities float32, both
    ``[turns, tokens]``."""

    tokens: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def empty(cls, turn_count: int, token_count: int) -> Generated:
        """Return the results of no token yet."""
        shape = (turn_count, token_count)
        return cls(np.full(shape, NO_TOKEN, np.int32), np.full(shape, np.nan, np.float32))


@dataclass(slots=True)
class Reference(Generated):
    """The results of plain decoding, with each token's lead in perturbed logits over the next best,
    float32."""

    margins: np.ndarray


@dataclass(slots=True)
class Account:
    """Events of a cell besides its tokens."""

    strikes: dict[str, int] = field(default_factory=dict)
    """Number of strikes by disturbance."""
    complaints: list[str] = field(default_factory=list)
    """Things that must not happen, even if the tokens are right."""
    seconds: float = 0.0


class ResultStore:
    """The files of one run. Each is written as a whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def reference(self, cell: int) -> Reference | None:
        """Return a cell's reference, if it is there."""
        path = self._path("reference", cell)
        return Reference(**_arrays(path)) if path.exists() else None

    def save_reference(self, cell: int, reference: Reference) -> None:
        """Store a cell's reference."""
        self._write(self._path("reference", cell), lambda file: np.savez(file, **asdict(reference)))

    def served(self, cell: int) -> tuple[Generated, Account] | None:
        """Return what the served system gave in a cell, if it has run."""
        path = self._path("served", cell)
        if not path.exists():
            return None
        arrays = _arrays(path)
        account = Account(**json.loads(bytes(arrays.pop("account"))))
        return Generated(**arrays), account

    def save_served(self, cell: int, generated: Generated, account: Account) -> None:
        """Store what the served system gave in a cell."""
        noted = np.frombuffer(json.dumps(asdict(account)).encode(), np.uint8)
        self._write(self._path("served", cell), lambda file: np.savez(file, account=noted, **asdict(generated)))

    def _path(self, kind: str, cell: int) -> Path:
        return self.directory / f"{kind}-{cell:04d}.npz"

    def _write(self, path: Path, write: Any) -> None:
        partial = path.with_suffix(f".{os.getpid()}.partial")
        file: IO[bytes]
        with partial.open("wb") as file:
            write(file)
        partial.replace(path)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)
