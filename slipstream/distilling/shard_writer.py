"""Writes shards of collected positions into a folder that only its owner can read.

The folder is bounded: the oldest shards go first. A shard has another name until it is whole, so
a process that is killed leaves only whole shards.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slipstream.distilling.records import RecordsError, SequenceRecord, Shard, TargetFacts, encoded, shard_paths

SHARD_BYTES = 16 * 2**20
"""Bytes of records in a shard. So much is held in memory."""

_SHARES = 8
"""A folder holds at least this many shards, so that rotation drops a small part of it."""

_LOCK = ".lock"
_UNFINISHED = ".unfinished"


class ShardWriter:
    """The one writer of a folder. Not for several threads."""

    def __init__(
        self,
        folder: Path,
        facts: TargetFacts,
        *,
        max_bytes: int,
        with_text: bool,
        shard_bytes: int = SHARD_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the folder, and make it if there is none. RecordsError if it cannot be made or
        written, if other users may read it, or if another process writes it."""
        self.folder, self._facts, self._with_text = folder, facts, with_text
        self._max_bytes, self._shard_bytes, self._clock = max_bytes, min(shard_bytes, max_bytes // _SHARES), clock
        self._records: list[SequenceRecord] = []
        self._byte_count = 0
        self._began = 0.0
        self.written_bytes = 0
        """Bytes of all shards that were written, also of those that were deleted since."""
        try:
            self._lock = _take(folder)
            self._unfinished = folder / _UNFINISHED
            self._unfinished.unlink(missing_ok=True)
            self._last_number = max((int(path.stem) for path in shard_paths(folder)), default=0)
        except OSError as error:
            raise RecordsError(f"{folder} cannot be written: {error.strerror or error}") from error

    @property
    def waiting_since(self) -> float | None:
        """Time of the first record that is in no shard yet; None if all are written."""
        return self._began if self._records else None

    def add(self, record: SequenceRecord) -> None:
        """Add a record with at least one row, and write a shard if there are enough. OSError as
        in `flush`."""
        if not self._records:
            self._began = self._clock()
        self._records.append(record)
        self._byte_count += record.byte_count
        if self._byte_count >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the records so far as a shard. OSError if they cannot be written: they are lost."""
        if not self._records:
            return
        records, self._records, self._byte_count = self._records, [], 0
        content = encoded(Shard(self._facts, records, self._began, self._clock()), with_text=self._with_text)
        self._rotate(len(content))
        try:
            self._write(content)
        except OSError:
            with suppress(OSError):
                self._unfinished.unlink(missing_ok=True)
            raise
        self.written_bytes += len(content)

    def close(self) -> None:
        """Write what is left, and release the folder. OSError as in `flush`."""
        try:
            self.flush()
        finally:
            os.close(self._lock)

    def _write(self, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._unfinished, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._last_number += 1
        self._unfinished.rename(self.folder / f"{self._last_number:06d}.safetensors")

    def _rotate(self, byte_count: int) -> None:
        """Delete the oldest shards until there is room for a new one."""
        sizes = {path: path.stat().st_size for path in shard_paths(self.folder)}
        total = sum(sizes.values()) + byte_count
        for path, size in sizes.items():
            if total <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


def _take(folder: Path) -> int:
    """Return a lock on the folder, as a file descriptor. OSError, RecordsError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise RecordsError(
            f"{folder} has mode {mode:03o}, so that other users may reach what it collects: run chmod 700 {folder}, or name "
            "a folder that does not exist yet"
        )
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise RecordsError(f"{folder} is being written by another process: name a folder of its own") from error
    return lock
