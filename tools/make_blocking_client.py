"""Generate the blocking client from the asyncio client.

python tools/make_blocking_client.py            write slipstream/client/blocking
python tools/make_blocking_client.py --check    exit with 1 if it is not what would be generated

`unasync` removes ``async`` and ``await`` and replaces names. The parts that differ on purpose
between an event loop and threads are written by hand: ``aio/event_loop.py`` and
``blocking/threads.py``, and the two modules ``reading.py``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "slipstream" / "client"
MODULES = "client", "connection", "reply", "session", "watcher"
NAMES = {
    "aio": "blocking",
    "event_loop": "threads",
    "aclosing": "closing",
    "AsyncChannel": "Channel",
    "AsyncClient": "Client",
    "AsyncConnection": "Connection",
    "AsyncEvent": "Event",
    "AsyncLock": "Lock",
    "AsyncReadable": "Readable",
    "AsyncReply": "Reply",
    "AsyncSession": "Session",
    "AsyncWatcher": "Watcher",
    "OrchestratorServiceAsyncStub": "OrchestratorServiceStub",
}
"""Names that are replaced, besides those that `unasync` knows."""

HEADER = "# Generated from aio/{name}.py by tools/make_blocking_client.py. Edit that module.\n"


def main(arguments: list[str]) -> int:
    """Write the modules, or compare them, and return an exit status."""
    generated = _generated()
    if "--check" not in arguments:
        for name, text in generated.items():
            _target(name).write_text(text)
        return 0
    stale = [name for name, text in generated.items() if not _is_current(name, text)]
    for name in stale:
        print(
            f"{_target(name).relative_to(ROOT)} is not generated from aio/{name}.py: run tools/make_blocking_client.py"
        )
    return bool(stale)


def _generated() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "aio"), Path(folder, "blocking")
        source.mkdir()
        for name in MODULES:
            shutil.copy(CLIENT / "aio" / f"{name}.py", source)
        rule = unasync.Rule(f"{source}/", f"{target}/", additional_replacements=NAMES)
        unasync.unasync_files([str(source / f"{name}.py") for name in MODULES], [rule])
        return {name: _formatted(name, (target / f"{name}.py").read_text()) for name in MODULES}


def _formatted(name: str, text: str) -> str:
    """Return the text in the project's format: names have other lengths and another order."""
    text = HEADER.format(name=name) + text
    for command in (["check", "--select", "I", "--fix-only"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(_target(name)), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def _target(name: str) -> Path:
    return CLIENT / "blocking" / f"{name}.py"


def _is_current(name: str, text: str) -> bool:
    return _target(name).exists() and _target(name).read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
