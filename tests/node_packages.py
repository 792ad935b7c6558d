"""Packages of npm for tests: installed as their lock file says, with the checkout's Node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import node_environment

_FOLDER = Path(sys.prefix) / "node"


def node_variables() -> dict[str, str]:
    """Return the environment's variables, with Node's programs first on the PATH."""
    if not (_FOLDER / "bin" / "node").exists():
        node_environment.fill(_FOLDER)
    return {**os.environ, "PATH": os.pathsep.join([str(_FOLDER / "bin"), os.environ["PATH"]])}


def install(package: Path) -> None:
    """Install a package's dependencies, unless those of its lock file are there."""
    lock, installed = package / "package-lock.json", package / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], package)


def run(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None, timeout: float = 300) -> str:
    """Run a command, and return what it prints. AssertionError with that if it fails."""
    environment = {**node_variables(), **(variables or {})}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
