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
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

PROGRESS = "compiling for this processor, once"
"""Begins each line about progress. The command line shows the newest one."""

_POLL_SECONDS = 0.05
_DONE = b"done\n"
_PATIENCE_SECONDS = 300.0
"""A unit takes seconds, and minutes on a slow processor."""


class Unit(NamedTuple):
    """Work that one process does while others wait for it."""

    name: str
    """Equal names are the same work: see `unit_name`."""
    compile: Callable[[], object]
    """Compiles functions and stores them, or loads those that are stored."""
    lock: str
    """Names the files where the unit stores. Units that share some have equal locks, and are
    compiled one after the other: Numba's index of a function's compiled forms would otherwise lead
    from one form to the code of another."""


def unit_name(kind: str, sources: Iterable[Path], *others: str) -> str:
    """Return a `Unit`'s name: its kind and a hash of what Numba judges stored code by.

    That is the sources' time and size, and the ``others``, such as the processor's name.
    """
    stats = [path.stat() for path in sources]
    parts = [kind, *others, *(f"{each.st_mtime_ns} {each.st_size}" for each in stats)]
    return f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def compile_shared(units: Sequence[Unit], folder: Path | None, *, patience: float = _PATIENCE_SECONDS) -> None:
    """Run every unit: alone the first time on this machine, while other processes run other units
    or wait.

    ``folder`` is where compiled functions are stored; None if they are not, and then each process
    compiles for itself. A line of progress is logged whenever a unit is done that was not stored.
    After ``patience`` seconds with nothing else to do, a process no longer waits for the one that
    has a lock: it may have been stopped.
    """
    missing = [unit.name for unit in units if folder is None or not _is_done(folder, unit)]
    waiting, compiled_count, ignored = list(units), 0, set[str]()
    idle_since = time.monotonic()
    if missing:
        log.info("%s: 0 of %d", PROGRESS, len(missing))
    while waiting:
        for unit in [*waiting]:
            if not _run(folder, unit, ignored):
                continue
            waiting.remove(unit)
            idle_since = time.monotonic()
            if unit.name in missing:
                compiled_count += 1
                log.info("%s: %d of %d", PROGRESS, compiled_count, len(missing))
                break  # the first of those that are left may be free by now
        else:
            if waiting and folder is not None and time.monotonic() - idle_since >= patience:
                lock = waiting[0].lock
                log.warning("compiling although another process has kept %s locked", _lock_path(folder, lock))
                ignored.add(lock)
            time.sleep(_POLL_SECONDS if waiting else 0)


def _lock_path(folder: Path, lock: str) -> Path:
    return folder / f"slipstream-{lock}.lock"


def _done_path(folder: Path, unit: Unit) -> Path:
    return folder / f"slipstream-{unit.name}.unit"


def _is_done(folder: Path, unit: Unit) -> bool:
    try:
        return _done_path(folder, unit).read_bytes() == _DONE
    except OSError:
        return False


def _run(folder: Path | None, unit: Unit, ignored: Container[str]) -> bool:
    """Run a unit. False if another process has its lock, unless that is ``ignored``."""
    if folder is None or _is_done(folder, unit):
        unit.compile()
        return True
    try:
        claim = None if unit.lock in ignored else _claim(_lock_path(folder, unit.lock))
    except BlockingIOError:
        return False
    try:
        unit.compile()
        with suppress(OSError):  # the next process then compiles or loads under the lock again
            _done_path(folder, unit).write_bytes(_DONE)
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
