"""`slipstream compile` compiles what a first start would."""

import os
import subprocess
import sys
from pathlib import Path

from slipstream.cli.compile import compile_halves


def test_compiling_ahead_leaves_nothing_to_compile() -> None:
    assert compile_halves(lambda line: None) == 0
    lines: list[str] = []
    assert compile_halves(lines.append) == 0
    assert not lines


def test_a_compiler_that_cannot_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise SystemExit(3)")
    code = "import sys; from slipstream.cli.compile import compile_halves; sys.exit(compile_halves(print))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 3
