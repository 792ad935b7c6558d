"""The data of a distillation: all shards of a folder, with what they are of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.distilling.errors import DistilError
from slipstream.distilling.examples import cut, split
from slipstream.distilling.records import SequenceRecord, TargetFacts, each_shard


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


def read_dataset(folder: Path, *, max_length: int, held_out: float) -> Dataset:
    """Return the data of a folder: of each sequence the first ``max_length`` tokens, and the share
    ``held_out`` of the prompts apart. RecordsError, DistilError."""
    notes, records, facts = [], [], None
    for path, shard in each_shard(folder):
        facts = shard.facts
        row_count = sum(len(record.positions) for record in shard.records)
        notes.append(ShardNote(path.name, _sha256(path), len(shard.records), row_count))
        records += [cut(record, max_length) for record in shard.records]
    used = [record for record in records if len(record.positions)]
    if facts is None or not used:
        raise DistilError(f"--data {folder} has no collected position in the first {max_length} tokens of a sequence")
    training, held = split(used, held_out)
    if not training or not held:
        raise DistilError(
            f"--data {folder} has sequences of one prompt only: at least two are needed, because acceptance is measured on "
            "prompts that are not trained on"
        )
    return Dataset(facts, tuple(notes), training, held, len(records) - len(used))


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DistilError(f"{path} cannot be read: {error.strerror}") from error
