"""The data of a distillation: all shards of a folder, with what they are of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.distilling.asked import read_asked
from slipstream.distilling.errors import DistilError
from slipstream.distilling.examples import cut, split
from slipstream.distilling.records import SequenceRecord, TargetFacts, each_shard, shard_paths
from slipstream.distilling.watch import Watch


@dataclass(frozen=True, slots=True)
class ShardNote:
    """A shard, as the lineage names it."""

    name: str
    sha256: str
    sequence_count: int
    row_count: int


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """The sequences of one target, divided."""

    facts: TargetFacts
    shards: tuple[ShardNote, ...]
    training: Sequence[SequenceRecord]
    held_out: Sequence[SequenceRecord]
    unused_count: int
    """Sequences without a collected position in their first tokens."""
    newer_shard_count: int = 0
    """Shards of the folder that a training which goes on did not begin with."""
    asked: Sequence[Mapping[str, Any]] = ()
    """Settings by which its answers were asked for, if they are not from traffic."""


def read_dataset(
    folder: Path, watch: Watch, *, max_length: int, held_out: float, begun_with: Mapping[str, str] | None = None
) -> Dataset:
    """Return the data of a folder: of each sequence the first ``max_length`` tokens, and the share
    ``held_out`` of the prompts apart. RecordsError, DistilError, StoppedError.

    ``begun_with`` has the sha256 of each shard of a training that goes on, by name. Only these are
    read.
    """
    notes, records, facts = [], [], None
    shards, count = each_shard(folder, begun_with), len(begun_with or shard_paths(folder))
    for path, shard in watch.each(shards, count, "reading: shard"):
        facts = shard.facts
        row_count = sum(len(record.positions) for record in shard.records)
        notes.append(ShardNote(path.name, _sha256(path), len(shard.records), row_count))
        records += [cut(record, max_length) for record in shard.records]
    if begun_with is not None:
        _refuse_changes(folder, begun_with, {note.name: note.sha256 for note in notes})
    used = [record for record in records if len(record.positions)]
    if facts is None or not used:
        raise DistilError(f"--data {folder} has no collected position in the first {max_length} tokens of a sequence")
    training, held = split(used, held_out)
    if not training or not held:
        raise DistilError(
            f"--data {folder} has sequences of one prompt only: at least two are needed, because acceptance is measured on "
            "prompts that are not trained on"
        )
    newer_count = 0 if begun_with is None else len(shard_paths(folder)) - len(begun_with)
    return Dataset(facts, tuple(notes), training, held, len(records) - len(used), newer_count, read_asked(folder))


def _refuse_changes(folder: Path, begun_with: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise DistilError unless all shards were read, and are what they were when the training
    began."""
    for name, sha256 in begun_with.items():
        if found.get(name) != sha256:
            raise DistilError(
                f"{folder / name} {'has changed' if name in found else 'is gone'} since the training began: put it back, or "
                "name another --out to begin again"
            )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DistilError(f"{path} cannot be read: {error.strerror}") from error
