"""Run fast tests on the oldest and the newest Python that pyproject.toml names.

Each version that is not this one gets its own environment, with `.venv`'s packages but without
torch. A version that is not installed is skipped, and a line says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
ENVIRONMENTS = CHECKOUT / ".venv" / "versions"

_TOOLS = ("hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-timeout")
_TESTS = """
    tests/contract/test_store.py
    tests/unit/test_access_pieces.py tests/unit/test_client_attempts.py tests/unit/test_client_settings.py
    tests/unit/test_client_shape.py tests/unit/test_client_turn.py tests/unit/test_event_loop.py
    tests/unit/test_orchestrator_parts.py tests/unit/test_owners.py tests/unit/test_turn_record.py
""".split()
"""Test files that need no torch and a few seconds: threads, event loops, files, sockets, clients,
the store."""
_WITHOUT = "not postgresql and not server"
"""Tests that are left out. A server takes time to start, and its messages do not depend on
Python."""


def versions() -> list[str]:
    """Return the supported versions of Python, oldest first."""
    classifiers = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [each.rpartition(" ")[2] for each in classifiers if each.startswith("Programming Language :: Python :: 3.")]
    return sorted(named, key=lambda version: int(version.partition(".")[2]))


def interpreter(version: str) -> str | None:
    """Return a Python of a version that starts, from PATH or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")))]
    return next((each for each in found if each is not None and _is(each, version)), None)


def _is(python: str, version: str) -> bool:
    tell = "import sys; print(f'{sys.version_info[0]}.{sys.version_info[1]}')"
    said = subprocess.run([python, "-c", tell], capture_output=True, text=True)
    return said.returncode == 0 and said.stdout.strip() == version


def environment(version: str, python: str) -> str:
    """Return the Python of an environment with what the tests need. It is made if it is missing or
    its lists have changed."""
    folder = ENVIRONMENTS / version
    lists = [CHECKOUT / "pyproject.toml", CHECKOUT / "constraints.txt", Path(__file__)]
    stamp, wanted = folder / "ready", hashlib.sha256(b"".join(each.read_bytes() for each in lists)).hexdigest()
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing what the fast tests need into {folder.relative_to(CHECKOUT)}: a minute", flush=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        compat = ["--config-settings", "editable_mode=compat", "--editable", ".[jwt,postgresql]"]
        subprocess.run([*pip, "--constraint", "constraints.txt", *compat, *_TOOLS], cwd=CHECKOUT, check=True)
        stamp.write_text(wanted)
    return str(folder / "bin" / "python")


def main() -> None:
    """Run the tests on each version, and return the first failed run's exit status."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    supported = versions()
    for version in dict.fromkeys((supported[0], supported[-1])):
        python = sys.executable if version == own else interpreter(version)
        if python is None:
            print(f"Python {version} is not installed here: its tests are skipped")
            continue
        if version != own:
            python = environment(version, python)
        print(f"fast tests on Python {version}", flush=True)
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", _WITHOUT, *_TESTS]
        if status := subprocess.run(command, cwd=CHECKOUT).returncode:
            sys.exit(status)


if __name__ == "__main__":
    main()
