"""A folder that one process writes, and that only its owner can read."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from slipstream.distilling.records import RecordsError

LOCK = ".lock"


def claim(folder: Path) -> int:
    """Make the folder if there is none, and return a lock on it, as a file descriptor. OSError;
    RecordsError if other users may reach the folder, or if another process has it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 or found.st_uid != os.geteuid():
        raise RecordsError(
            f"{folder} has mode {mode:03o} and belongs to user {found.st_uid}, so that others can reach what is collected: "
            f"name a folder that does not exist yet, or one of user {os.geteuid()} with mode 700"
        )
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise RecordsError(f"{folder} is being written by another process: name a folder of its own") from error
    return lock
