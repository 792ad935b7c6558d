"""Values loaded from files, and loaded again when the files change.

Certificates and tokens are replaced while processes run.
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
_Stamp = tuple[tuple[int, ...] | None, ...]


class FileError(SlipstreamError):
    """A file cannot be read, or does not hold what its flag needs."""

    reason = Reason.BAD_FILE


def read_bytes(flag: str, path: str) -> bytes:
    """Return a file's content. FileError, which names the flag."""
    try:
        refuse_writable(flag, Path(path))
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{flag} {path} cannot be read: {error.strerror or error}") from error


def refuse_writable(flag: str, path: Path) -> None:
    """Raise a FileError if every user of the machine may change a file that secures something.
    OSError if it is not there."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise FileError(f"{flag} {path} can be changed by every user of this machine: chmod o-w {path}")


class Reloaded(Generic[ValueT]):
    """A value that ``load`` makes of files. Any thread may read it."""

    def __init__(self, paths: Sequence[str], load: Callable[[], ValueT], *, look_seconds: float = 1.0) -> None:
        """Load the value. FileError if ``load`` raises it.

        A read of `current` checks the files, at most every ``look_seconds``. A later FileError is
        logged once, and the last good value stays in use.
        """
        self._paths = tuple(map(Path, paths))
        self._load = load
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._stamp: _Stamp = ()
        self._value = self._read()
        self._looked = time.monotonic()

    @property
    def current(self) -> ValueT:
        """Return the value of the current files: the same object until they change."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= self._look_seconds:
                self._looked = now
                if self._stamp_now() != self._stamp:
                    self._renew()
            return self._value

    def _renew(self) -> None:
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._read()
        except FileError as error:
            log.error("%s; the old value stays in use", error)
        except Exception:  # any error of ``load``: a replaced file must not end the process
            log.exception("%s: cannot be used; the old value stays in use", names)
        else:
            log.info("%s: changed, and read again", names)

    def _read(self) -> ValueT:
        """Return a value of files that did not change during the read, so that a certificate never
        meets another key."""
        while True:
            self._stamp = self._stamp_now()
            try:
                value = self._load()
            except Exception:
                if self._stamp_now() == self._stamp:
                    raise
            else:
                if self._stamp_now() == self._stamp:
                    return value

    def _stamp_now(self) -> _Stamp:
        return tuple(map(_stamp_of, self._paths))


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()  # of a link's target: Kubernetes replaces links
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
