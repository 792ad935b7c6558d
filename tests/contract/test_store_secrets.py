"""What the orchestrator says of a store that it cannot open."""

from __future__ import annotations

import subprocess
import sys

SECRET = "hunter2"


def test_an_orchestrator_ends_in_one_line_without_the_password() -> None:
    flags = ["--store", f"postgresql://u:{SECRET}/x@[::1/db", "--address", "127.0.0.1:0"]
    ended = subprocess.run([sys.executable, "-m", "orchestrator", *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("orchestrator: --store has to be postgresql://USER:PASSWORD@")
    assert SECRET not in ended.stderr and "Traceback" not in ended.stderr
