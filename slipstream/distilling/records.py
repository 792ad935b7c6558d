"""Shards of collected positions: what a target chose, and what else it might have chosen.

A shard is a safetensors file. Its tensors, of S sequences, T tokens, P rows and K likeliest tokens:

- ``tokens`` int32 [T]: all sequences' token ids; ``starts`` int64 [S + 1]: where each begins.
- ``rows`` int32 [P, 2]: sequence, and position of the token that was chosen there.
- ``top_ids`` int32 [P, K], ``top_logprobs`` float32 [P, K]: the likeliest tokens, largest first.
- ``chosen`` int32 [P]; ``hints`` int32 [P]: the hint token that stood there, -1 if there was none.
- ``outcomes`` int8 [P]: 1 if the hint was right, 0 if it was wrong, -1 if there was none.

K is 64, or the size of a smaller vocabulary. Token ids are text: a shard without text has only
``rows``, ``top_logprobs`` and ``outcomes``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason

FORMAT_VERSION = "1"
MOST_LIKELIEST = 64
NO_HINT = -1
_SUFFIX = ".safetensors"

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_DTYPES = {
    "tokens": np.int32,
    "starts": np.int64,
    "rows": np.int32,
    "top_ids": np.int32,
    "top_logprobs": np.float32,
    "chosen": np.int32,
    "hints": np.int32,
    "outcomes": np.int8,
}
_OF_TEXT = ("tokens", "starts", "top_ids", "chosen", "hints")
"""Tensors that a shard without text does not have."""


class RecordsError(SlipstreamError):
    """A folder or shard of collected positions cannot be read or written, or does not fit."""

    reason = Reason.BAD_FILE


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Facts about the target whose choices are collected."""

    name: str
    weights_fingerprint: str
    tokenizer_fingerprint: str
    sampling_version: int
    vocabulary_size: int
    sampled_digest: str = ""
    """`slipstream.distilling.targets.sampled_digest`; empty if it is not known."""


_MAY_DIFFER = ("name", "sampled_digest")
"""Facts that may differ between shards of one target: it may have moved, and older releases wrote
no digest."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceRecord:
    """A sequence's ``tokens`` [T], and its P collected rows.

    Row i was computed after ``tokens[:positions[i]]``. The target chose ``chosen[i]`` there.
    ``hints[i]`` is the hint token that stood there, or `NO_HINT`: it was rejected if it is another
    one than the choice. ``top_ids[i]`` are the likeliest tokens at temperature 1 before any filter,
    largest first, and ``top_logprobs[i]`` their log-probabilities.
    """

    tokens: Ints
    positions: Ints
    top_ids: Ints
    top_logprobs: Floats
    chosen: Ints
    hints: Ints

    @property
    def byte_count(self) -> int:
        """Bytes that the record takes in a shard, without the shard's header."""
        row_bytes = 4 * (4 + 2 * int(self.top_ids.shape[1])) + 1
        return 4 * len(self.tokens) + 8 + row_bytes * len(self.positions)


class Shard(NamedTuple):
    """A shard's content."""

    facts: TargetFacts
    records: list[SequenceRecord]
    began: float
    """Unix time of its first record."""
    ended: float
    """Unix time at which it was written."""


def encoded(shard: Shard, *, with_text: bool) -> bytes:
    """Return a shard as the bytes of a safetensors file. It has at least one record."""
    records = shard.records
    hints = np.concatenate([record.hints for record in records])
    chosen = np.concatenate([record.chosen for record in records])
    counts = [len(record.positions) for record in records]
    tensors = {
        "tokens": np.concatenate([record.tokens for record in records]),
        "starts": np.cumsum([0, *(len(record.tokens) for record in records)]),
        "rows": np.stack(
            [np.repeat(np.arange(len(records)), counts), np.concatenate([record.positions for record in records])],
            axis=1,
        ),
        "top_ids": np.concatenate([record.top_ids for record in records]),
        "top_logprobs": np.concatenate([record.top_logprobs for record in records]),
        "chosen": chosen,
        "hints": hints,
        "outcomes": np.where(hints == NO_HINT, NO_HINT, hints == chosen),
    }
    kept = {
        name: np.ascontiguousarray(tensor, dtype=_DTYPES[name])
        for name, tensor in tensors.items()
        if with_text or name not in _OF_TEXT
    }
    metadata = {name: str(value) for name, value in asdict(shard.facts).items()}
    metadata |= {"format_version": FORMAT_VERSION, "has_text": str(int(with_text))}
    metadata |= {"began": repr(shard.began), "ended": repr(shard.ended)}
    return save(kept, metadata)


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards of a folder, the oldest first. RecordsError if there is no such folder."""
    if not folder.is_dir():
        raise RecordsError(f"{folder} is no folder of collected positions: it does not exist, or is a file")
    return sorted(
        (path for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal()), key=lambda path: int(path.stem)
    )


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a folder's shard. Shards are numbered from 1."""
    return folder / f"{number:06d}{_SUFFIX}"


def began_at(path: Path) -> float:
    """Return the Unix time of a shard's first record, which no other shard of its folder has. The
    records are not read. RecordsError."""
    try:
        with safe_open(path, framework="numpy") as file:
            return float((file.metadata() or {})["began"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RecordsError(f"{path} cannot be read as collected positions: {error}") from error


def read_shard(path: Path) -> Shard:
    """Return a shard with text. RecordsError if it cannot be read, is damaged or has no text."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            _check_metadata(path, metadata)
            tensors = {name: file.get_tensor(name) for name in _DTYPES}
        facts = TargetFacts(
            metadata["name"],
            metadata["weights_fingerprint"],
            metadata["tokenizer_fingerprint"],
            int(metadata["sampling_version"]),
            int(metadata["vocabulary_size"]),
            metadata.get("sampled_digest", ""),
        )
        began, ended = float(metadata["began"]), float(metadata["ended"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RecordsError(f"{path} cannot be read as collected positions: {error}") from error
    if fault := _fault_of(tensors, facts.vocabulary_size):
        raise RecordsError(f"{path} is damaged: {fault}")
    return Shard(facts, _records_of(tensors), began, ended)


def read_shards(folder: Path) -> Iterator[SequenceRecord]:
    """Yield the sequences of all shards of a folder, in the order in which they were written.
    RecordsError as in `each_shard`."""
    for _, shard in each_shard(folder):
        yield from shard.records


def each_shard(folder: Path, names: Collection[str] | None = None) -> Iterator[tuple[Path, Shard]]:
    """Yield the shards of a folder with their paths, the oldest first; with ``names`` only those of
    them that are there.

    RecordsError if there are none, if a shard cannot be read, has no text, or is of another target
    than the first one. A shard that a running verifier rotates away meanwhile is left out.
    """
    first: tuple[Path, TargetFacts] | None = None
    for path in shard_paths(folder):
        if names is not None and path.name not in names:
            continue
        try:
            shard = read_shard(path)
        except RecordsError:
            if not path.exists():
                continue
            raise
        first = first or (path, shard.facts)
        if difference := _difference(first[1], shard.facts):
            raise RecordsError(
                f"{path} is of another target than {first[0].name}: {difference}. Use one folder for each target"
            )
        yield path, shard
    if first is None and names is None:
        raise RecordsError(f"{folder} has no shards of collected positions (NNNNNN.safetensors)")


def _difference(one: TargetFacts, other: TargetFacts) -> str:
    """Return what makes two shards' targets different ones."""
    before, after = asdict(one), asdict(other)
    return "; ".join(
        f"{key.replace('_', ' ')} {after[key]} is not {before[key]}"
        for key in before
        if key not in _MAY_DIFFER and before[key] != after[key]
    )


def _check_metadata(path: Path, metadata: Mapping[str, str]) -> None:
    if (version := metadata.get("format_version")) != FORMAT_VERSION:
        raise RecordsError(f"{path} has format version {version}, and this release reads {FORMAT_VERSION}")
    if metadata.get("has_text") != "1":
        raise RecordsError(f"{path} was collected without text (token ids): collect again with --collect-text")


def _fault_of(tensors: Mapping[str, NDArray[Any]], vocabulary_size: int) -> str:
    """Return what is wrong with a shard's tensors; empty if nothing is."""
    for name, dtype in _DTYPES.items():
        if tensors[name].dtype != dtype:
            return f"{name} is {tensors[name].dtype} and has to be {np.dtype(dtype)}"
    tokens, starts, rows = tensors["tokens"], tensors["starts"], tensors["rows"]
    count, width = len(rows), min(MOST_LIKELIEST, vocabulary_size)
    shapes: dict[str, tuple[int, ...]] = {"top_ids": (count, width), "top_logprobs": (count, width), "rows": (count, 2)}
    shapes |= dict.fromkeys(("chosen", "hints", "outcomes"), (count,))
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            return f"{name} has shape {[*tensors[name].shape]} and needs {[*shape]}"
    if starts.ndim != 1 or tokens.ndim != 1 or not len(starts) or starts[0] or starts[-1] != len(tokens):
        return "starts does not divide tokens"
    lengths = np.diff(starts)
    if (lengths < 0).any():
        return "starts falls"
    if count and not _rows_fit(rows, lengths):
        return "rows names positions that no sequence has"
    ids = ("tokens", "top_ids", "chosen")
    if any(tensors[name].size and not _within(tensors[name], 0, vocabulary_size) for name in ids):
        return f"a token id is not from 0 to {vocabulary_size - 1}"
    if not np.isfinite(tensors["top_logprobs"]).all():
        return "top_logprobs has NaN or infinity"
    return ""


def _within(values: NDArray[Any], least: int, end: int) -> bool:
    return bool(values.min() >= least and values.max() < end)


def _rows_fit(rows: NDArray[Any], lengths: NDArray[Any]) -> bool:
    sequences, positions = rows[:, 0], rows[:, 1]
    if not _within(sequences, 0, len(lengths)) or (np.diff(sequences) < 0).any():
        return False
    return bool((positions >= 1).all() and (positions <= lengths[sequences]).all())


def _records_of(tensors: Mapping[str, NDArray[Any]]) -> list[SequenceRecord]:
    starts, rows = tensors["starts"], tensors["rows"]
    row_starts: Sequence[int] = np.searchsorted(rows[:, 0], np.arange(len(starts))).tolist()
    return [
        SequenceRecord(
            tensors["tokens"][starts[at] : starts[at + 1]],
            rows[first:end, 1],
            *(tensors[name][first:end] for name in ("top_ids", "top_logprobs", "chosen", "hints")),
        )
        for at, (first, end) in enumerate(pairwise(row_starts))
    ]
