"""Environments that hold the wheels of this checkout, and nothing of the checkout itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tools.install_packages import CONSTRAINTS, pip_options, uv_environment

CHECKOUT = Path(__file__).parents[1]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "slipstream", "orchestrator", "verifier_service", "draft_service")
_NOT_BUILT_FROM = shutil.ignore_patterns("__pycache__", "build", "node_modules", "*.egg-info")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def build_wheels(folder: Path) -> Path:
    """Build both distributions from a copy of the checkout, and return the folder of the wheels."""
    source, wheels = folder / "source", folder / "wheels"
    source.mkdir()
    for name in (*_SOURCES, "gateway"):
        path = CHECKOUT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=_NOT_BUILT_FROM)
        else:
            shutil.copy(path, source / name)
    command = [*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), ".", "./slipstream/embedded"]
    subprocess.run(command, cwd=source, check=True, timeout=300)
    return wheels


@dataclass(frozen=True, slots=True)
class WheelEnvironment:
    """A virtual environment that holds what was installed from wheels."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def size(self) -> int:
        """Bytes of all packages, with their bytecode."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())

    def install(self, wheel: Path, extra: str = "", *, bytecode: bool = False) -> None:
        """Install a wheel and what it needs, in the versions of constraints.txt. ``bytecode`` is
        written too, as pip does: it takes seconds."""
        said = subprocess.run([*_PIP, "config", "list"], capture_output=True, text=True, check=True)
        environment = {**uv_environment(pip_options(said.stdout)), **os.environ}
        command = [*_PIP, "--python", self.python, "install"]
        if find_spec("uv") is not None:  # a tenth of pip's time
            command = [sys.executable, "-m", "uv", "pip", "install", "--python", self.python]
            command += ["--compile-bytecode"] if bytecode else []
        command += ["--quiet", "--constraint", str(CONSTRAINTS), f"{wheel}{extra}"]
        subprocess.run(command, env=environment, check=True, timeout=300)

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, without the checkout in its path."""
        program = str(self.folder / "bin" / command[0])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"COLUMNS": "200", "NO_COLOR": "1"}
        return subprocess.run(
            [program, *command[1:]], input=text, capture_output=True, text=True, timeout=100, env=environment, cwd="/"
        )


def empty_environment(folder: Path) -> WheelEnvironment:
    """Make an environment without any package, pip included."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=100)
    return WheelEnvironment(folder)
