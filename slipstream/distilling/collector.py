"""Collects rows of a share of sequences while a target serves.

The model thread copies a row's logits and goes on. A thread here finds the likeliest tokens and
writes shards. It drops and counts what it has no time for. An error ends collecting, and serving
goes on.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import lru_cache

from slipstream.distilling.open_records import OpenRecords, SeenRows
from slipstream.distilling.records import SequenceRecord
from slipstream.distilling.shard_writer import ShardWriter
from slipstream.distilling.totals import CollectTotals
from slipstream.engine.row_observer import ObservedRows
from slipstream.engine.sequence import Sequence

log = logging.getLogger(__name__)

_MOST_WAITING_BYTES = 64 * 2**20
"""Bytes of copies that may wait for the thread."""
_TICK_SECONDS = 1.0
_LONGEST_CLOSE_SECONDS = 10.0
_FLUSH_SECONDS = 30.0
"""Seconds after which complete records become a shard, even a small one."""


class Collector:
    """A `slipstream.engine.row_observer.RowObserver` that writes what it sees. Call `close` at the
    end."""

    def __init__(
        self,
        writer: ShardWriter,
        totals: CollectTotals,
        *,
        share: float,
        most_waiting_bytes: int = _MOST_WAITING_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``share`` of all sequences are watched, from 0 to 1."""
        self._writer, self._totals, self._share, self._clock = writer, totals, share, clock
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting_bytes = self._seen_row_count = 0
        self._lock = threading.Lock()
        """Guards the number of waiting bytes."""
        self._seen: queue.SimpleQueue[SeenRows | None] = queue.SimpleQueue()
        self._records = OpenRecords(clock)
        self._written_at = clock()
        totals.is_collecting = True
        self._thread = threading.Thread(target=self._run, name="collect", daemon=True)
        self._thread.start()

    def watches(self, sequence: Sequence) -> bool:
        """Return whether a sequence is in the share. A hash of its handle decides, so that all of
        its rows are collected or none."""
        return self._totals.is_collecting and not sequence.is_private and _is_drawn(sequence.handle, self._share)

    def observe(self, rows: ObservedRows) -> None:
        """Copy rows for the thread."""
        stored = rows.logits.stored
        byte_count = len(rows.choices) * stored.shape[1] * stored.itemsize + 8 * rows.position
        with self._lock:
            has_room = self._waiting_bytes + byte_count <= self._most_waiting_bytes
            self._waiting_bytes += byte_count if has_room else 0
        if not has_room:
            self._totals.dropped_row_count += len(rows.choices)
            return
        self._seen_row_count += len(rows.choices)
        self._seen.put(
            SeenRows(
                rows.sequence.handle,
                rows.sequence.tokens[: rows.position],
                tuple(rows.hint),
                tuple(rows.choices),
                stored[rows.logits.indices],
            )
        )

    def close(self) -> None:
        """Write what is left, and end the thread. A disk that does not answer costs ten seconds and
        what is left."""
        self._seen.put(None)
        self._thread.join(_LONGEST_CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("the disk of %s does not answer: what was not written is lost", self._writer.folder)

    def _run(self) -> None:
        try:
            self._collect()
            self._write(self._records.take_all())
            self._writer.flush()
        except Exception as error:  # a full disk, a folder that has vanished
            log.warning("collecting into %s has stopped, and serving goes on: %s", self._writer.folder, error)
        self._totals.is_collecting = False
        self._totals.dropped_row_count += self._seen_row_count - self._writer.written_rows
        self._count()
        self._writer.close()
        while not self._seen.empty():  # copies of logits
            self._seen.get()

    def _collect(self) -> None:
        """Take what the model thread leaves, until the end."""
        next_tick = self._clock() + _TICK_SECONDS
        while True:
            try:
                seen = self._seen.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                pass
            else:
                if seen is None:
                    return
                self._write(self._records.add(seen))
                with self._lock:
                    self._waiting_bytes -= seen.byte_count
            if (now := self._clock()) >= next_tick:
                next_tick = now + _TICK_SECONDS
                self._write(self._records.take_ended())
                if now - self._written_at >= _FLUSH_SECONDS:
                    self._writer.flush()
                    self._written_at = now
                self._count()

    def _write(self, records: Iterable[SequenceRecord]) -> None:
        for record in records:
            self._writer.add(record)

    def _count(self) -> None:
        self._totals.row_count, self._totals.byte_count = self._writer.written_rows, self._writer.written_bytes


@lru_cache(maxsize=2**16)
def _is_drawn(handle: str, share: float) -> bool:
    drawn = int.from_bytes(hashlib.sha256(handle.encode()).digest()[:8])
    return drawn < share * 2**64
