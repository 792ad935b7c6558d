"""A home folder for users who have none. Compiled code and downloads are stored below it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def has_home() -> bool:
    """Return whether this user has a home folder. Containers often run under numbers that belong to
    no user.

    A relative HOME does not count: it would be another folder in each current folder.
    """
    try:
        return Path.home().is_absolute()
    except RuntimeError:
        return False


def borrow_home() -> None:
    """Give a user without a home folder a private one, which ends with this process.

    Libraries would keep files in a folder called "~" of the current folder, and execute what they
    find there.
    """
    if not has_home():
        home = tempfile.mkdtemp(prefix="slipstream-home-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ["HOME"] = home


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in the place of its ``~``. That of a user who does not
    exist stays, so there is nothing at such a path."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
