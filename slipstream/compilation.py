"""Compile each function once on a machine, however many processes need it.

Numba stores compiled functions in a folder. Processes that start at the same time would each
compile all of them. Here a process claims a unit of work by a file lock in that folder. It takes
other units while one is claimed elsewhere, and loads what other processes have compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

PROGRESS = "compiling for this processor, once"
"""Begins each line about progress. The command line shows the newest one."""

_POLL_SECONDS = 0.05
_DONE = b"done\n"


class Unit(NamedTuple):
    """Work that one process does while others wait for it."""

    name: str
    """Equal names are the same work: see `unit_name`."""
    compile: Callable[[], object]
    """Compiles functions and stores them, or loads those that are stored."""


def unit_name(kind: str, sources: Iterable[Path], *others: str) -> str:
    """Return a `Unit`'s name: its kind and a hash of what Numba judges stored code by.

    That is the sources' time and size, and the ``others``, such as the processor's name.
    """
    stats = [path.stat() for path in sources]
    parts = [kind, *others, *(f"{each.st_mtime_ns} {each.st_size}" for each in stats)]
    return f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def compile_shared(units: Sequence[Unit], folder: Path | None) -> None:
    """Run every unit: alone the first time on this machine, while other processes run other units
    or wait.

    ``folder`` is where compiled functions are stored; None if they are not, and then each process
    compiles for itself. A line of progress is logged whenever a unit is done that was not stored.
    """
    missing = [unit.name for unit in units if folder is None or not _is_done(folder, unit)]
    waiting, compiled_count = list(units), 0
    if missing:
        log.info("%s: 0 of %d", PROGRESS, len(missing))
    while waiting:
        for unit in [*waiting]:
            if not _run(folder, unit):
                continue
            waiting.remove(unit)
            if unit.name in missing:
                compiled_count += 1
                log.info("%s: %d of %d", PROGRESS, compiled_count, len(missing))
                break  # the first of those that are left may be free by now
        else:
            time.sleep(_POLL_SECONDS if waiting else 0)


def _path(folder: Path, unit: Unit) -> Path:
    return folder / f"slipstream-{unit.name}.unit"


def _is_done(folder: Path, unit: Unit) -> bool:
    try:
        return _path(folder, unit).read_bytes() == _DONE
    except OSError:
        return False


def _run(folder: Path | None, unit: Unit) -> bool:
    """Run a unit. False if another process is running it."""
    if folder is None or _is_done(folder, unit):
        unit.compile()
        return True
    try:
        claim = _claim(_path(folder, unit))
    except BlockingIOError:
        return False
    try:
        unit.compile()
        if claim is not None:
            os.pwrite(claim, _DONE, 0)
    finally:
        if claim is not None:
            os.close(claim)
    return True


def _claim(path: Path) -> int | None:
    """Lock a file that all who share the folder see, and return its descriptor: closed, or when the
    process ends, the lock is gone. None if there can be no lock here. BlockingIOError if another
    process has it."""
    try:
        claim = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(claim)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return claim
