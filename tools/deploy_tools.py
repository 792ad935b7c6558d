"""Running the tools that check deploy/, and telling what they found."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SECONDS = 120.0
"""Seconds that a tool may take. One that waits for a network which does not answer takes longer."""

Fault = str


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one check of one file; ``skipped`` says why there is none."""

    file: str
    check: str
    faults: tuple[Fault, ...] = ()
    skipped: str = ""


def version() -> str:
    """Return the package's version."""
    found = re.search(r'"(.+)"', (ROOT / "slipstream/version.py").read_text().split("VERSION =")[1])
    assert found is not None
    return found[1]


def find_tool(name: str) -> str | None:
    """Return where a tool is: among those that `make check` installs, or else in PATH."""
    beside = os.environ.get("DEPLOY_TOOLS", str(ROOT / ".venv" / "deploy" / "bin"))
    return shutil.which(name, path=beside) or shutil.which(name)


def run_tool(
    path: Path,
    check: str,
    tool: str,
    *arguments: str | Path,
    output: Path | None = None,
    optional: bool = False,
    said_is_fault: bool = False,
) -> Report:
    """Run a tool and report. Its standard output goes to ``output`` if it succeeds. An ``optional``
    tool is one that pip cannot bring. A tool that does not end in time is a fault."""
    program = find_tool(tool)
    if program is None:
        absent = f"{tool} is not here"
        return result(path, check, skipped=absent) if optional else result(path, check, [f"{absent}: run make check"])
    try:
        status, written, told = _run([program, *map(str, arguments)])
    except subprocess.TimeoutExpired:
        return result(path, check, [f"{tool} did not end within {SECONDS:g} s: does it wait for a network?"])
    except OSError as error:
        return result(path, check, [f"{program} cannot be run: {error.strerror}"])
    said = [line.replace(f"{ROOT}/", "").strip() for line in (written + told).splitlines() if line.strip()]
    if status != 0 or (said_is_fault and said):
        return result(path, check, said or [f"{tool} ended with {status}"])
    if output is not None:
        output.write_text(written)
    return result(path, check)


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Return the status, the output and the errors of a command. subprocess.TimeoutExpired, after
    it was ended with all that it started; OSError."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            written, told = process.communicate(timeout=SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # what it started may hold its output open
            raise
    return process.returncode, written, told


def name_of(path: Path) -> str:
    """Return a path below the checkout."""
    return str(path.relative_to(ROOT))


def result(path: Path, check: str, faults: Iterable[Fault] = (), skipped: str = "") -> Report:
    """Return the report of a check of a file."""
    return Report(name_of(path), check, tuple(faults), skipped)


def tell(reports: Iterable[Report]) -> int:
    """Print a line for each file, and the faults below it. Returns the number of files at fault."""
    files: dict[str, list[Report]] = {}
    for each in reports:
        files.setdefault(each.file, []).append(each)
    bad = 0
    for file, about in sorted(files.items()):
        faults = [f"{each.check}: {fault}" for each in about for fault in each.faults]
        passed = ", ".join(each.check for each in about if not each.faults and not each.skipped)
        skipped = "; ".join(f"no {each.check}, {each.skipped}" for each in about if each.skipped)
        bad += bool(faults)
        state = "FAULT" if faults else "ok   " if passed else "skip "
        print(f"{state} {file}: {passed or 'nothing'}{f' ({skipped})' if skipped else ''}")
        for fault in faults:
            print(f"        {fault}")
    return bad
