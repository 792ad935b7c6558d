"""Writes shards of collected positions into a folder that only its owner can read.

The folder is bounded: the oldest shards go first. A shard has another name until it is whole, so
a process that is killed leaves only whole shards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slipstream.distilling.private_folder import claim
from slipstream.distilling.records import (
    RecordsError,
    SequenceRecord,
    Shard,
    TargetFacts,
    encoded,
    shard_path,
    shard_paths,
)

SHARD_BYTES = 16 * 2**20
"""Bytes of records in a shard. So much is held in memory."""

_SHARES = 8
"""A folder holds at least this many shards, so that rotation drops a small part of it."""

_UNFINISHED = ".unfinished"


class ClaimedFolder:
    """A folder that this process alone writes, until `close`."""

    def __init__(self, path: Path) -> None:
        """Take the folder, and make it if there is none. RecordsError if it cannot be made or
        written, if other users may reach it, or if another process has it."""
        self.path = path
        self.unfinished = path / _UNFINISHED
        try:
            self._lock = claim(path)
            self.unfinished.unlink(missing_ok=True)
            self.last_number = max((int(shard.stem) for shard in shard_paths(path)), default=0)
        except OSError as error:
            raise RecordsError(f"{path} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Let another process take the folder."""
        os.close(self._lock)


class ShardWriter:
    """Writes the shards of a folder. Not for several threads."""

    def __init__(
        self,
        folder: ClaimedFolder,
        facts: TargetFacts,
        *,
        max_bytes: int,
        with_text: bool,
        shard_bytes: int = SHARD_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``max_bytes`` of all shards together. A shard is written once it has ``shard_bytes``."""
        self.folder, self._claimed, self._facts, self._with_text = folder.path, folder, facts, with_text
        self._max_bytes, self._shard_bytes, self._clock = max_bytes, min(shard_bytes, max_bytes // _SHARES), clock
        self._records: list[SequenceRecord] = []
        self._byte_count = 0
        self._began = 0.0
        self.written_bytes = self.written_rows = 0
        """Sums over all shards that were written, also of those that were deleted since."""

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
        finally:
            with suppress(OSError):  # it is there only if writing has failed
                self._claimed.unfinished.unlink(missing_ok=True)
        self.written_bytes += len(content)
        self.written_rows += sum(len(record.positions) for record in records)

    def close(self) -> None:
        """Let another process write the folder. What was not flushed is lost."""
        self._claimed.close()

    def _write(self, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._claimed.unfinished, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._claimed.last_number += 1
        self._claimed.unfinished.rename(shard_path(self.folder, self._claimed.last_number))

    def _rotate(self, byte_count: int) -> None:
        """Delete the oldest shards until there is room for a new one."""
        sizes = {path: _size_of(path) for path in shard_paths(self.folder)}
        total = sum(sizes.values()) + byte_count
        for path, size in sizes.items():
            if total <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


def _size_of(path: Path) -> int:
    """Return the bytes of a shard, 0 if an operator has deleted it meanwhile. OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
