"""Commands in a folder whose files are called like modules: they belong to a user, and are not
executed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli.local import free_address

ROOT = Path(__file__).parents[2]
SLIPSTREAM = Path(sys.executable).with_name("slipstream")
PAPER = ["--target", "arithmetic:ends=0", "--draft", "arithmetic:ends=0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose code writes down that it was executed, and then does what the command would
    not survive."""
    code = "import os, pathlib\npathlib.Path(__file__).with_name('executed').touch()\nos._exit(3)\n"
    for name in ("queue.py", "tokenizers.py", "multiprocessing.py"):
        (tmp_path / name).write_text(code)
    for name in ("orchestrator", "slipstream", "verifier_service"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    return tmp_path


def executed(folder: Path) -> list[Path]:
    return sorted(folder.rglob("executed"))


def test_a_local_chat_executes_no_file_of_the_current_folder(folder: Path) -> None:
    ended = subprocess.run(
        [SLIPSTREAM, "chat", "--local", *PAPER, "--max-tokens", "2"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
    )
    assert not executed(folder)
    assert ended.returncode == 0, ended.stderr


def test_processes_behind_one_port_execute_no_file_of_the_current_folder(folder: Path) -> None:
    address = free_address()
    flags = ["--process-count", "2", "--address", address, "--verifier", free_address(), "--draft", ""]
    command = [sys.executable, "-P", "-m", "orchestrator", *flags, "--store", "memory"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr is not None
        waiting = {"orchestrator 0", "orchestrator 1"}
        lines = []
        for line in serving.stderr:
            lines.append(line)
            waiting -= {name for name in waiting if name in line}
            if not waiting or "exit code" in line:
                break
        serving.terminate()
        serving.stderr.read()
    assert not executed(folder)
    assert not waiting, lines


_COMMAND = re.compile(r"python3?(?P<flags>(?: -[A-Z])*) -m (?P<module>[\w.]+)")
_WITHOUT_OUR_CODE = ("venv",)
_SHOWN = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "security", "alerts")),
    *(ROOT / "docs" / "guides").glob("*.md"),
]
"""What people type elsewhere than in a checkout. Reports have the commands that they were made by,
in a checkout."""


def test_every_command_that_people_are_shown_leaves_the_current_folder_out() -> None:
    shown = [*_SHOWN, *(file for name in ("deploy", "examples") for file in (ROOT / name).rglob("*"))]
    shown += [ROOT / name / "__main__.py" for name in ("orchestrator", "verifier_service", "draft_service")]
    shown += [ROOT / "orchestrator" / "processes" / "settings.py", ROOT / "slipstream" / "cli" / "local.py"]
    faults = [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in shown
        if file.is_file()
        for found in _COMMAND.finditer(file.read_text().replace('", "', " "))
        if " -P" not in found["flags"] and found["module"] not in _WITHOUT_OUR_CODE
    ]
    assert not faults, "\n".join(faults)


def test_make_leaves_the_current_folder_out() -> None:
    assert re.search(r"^export PYTHONSAFEPATH := 1$", (ROOT / "Makefile").read_text(), re.M)
