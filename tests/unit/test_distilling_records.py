"""Shards of collected positions: what is written is read, within bounds, by the owner alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from slipstream.distilling.records import (
    NO_HINT,
    RecordsError,
    SequenceRecord,
    TargetFacts,
    read_shard,
    read_shards,
    shard_paths,
)
from slipstream.distilling.shard_writer import ClaimedFolder, ShardWriter

FACTS = TargetFacts("target", "w" * 64, "t" * 64, 3, 1000)


def a_record(seed: int, row_count: int = 5, vocabulary_size: int = 1000) -> SequenceRecord:
    random, width = np.random.default_rng(seed), min(64, vocabulary_size)
    chosen = random.integers(vocabulary_size, size=row_count, dtype=np.int32)
    hints = np.where(np.arange(row_count) % 3 == 0, chosen, chosen - 1).astype(np.int32)
    hints[row_count // 2 :] = NO_HINT
    return SequenceRecord(
        random.integers(vocabulary_size, size=row_count + 7, dtype=np.int32),
        np.arange(7, 7 + row_count, dtype=np.int32),
        np.stack([random.permutation(vocabulary_size)[:width] for _ in range(row_count)]).astype(np.int32),
        -np.sort(random.random((row_count, width), dtype=np.float32)),
        chosen,
        hints,
    )


def a_writer(folder: Path, **changes: Any) -> ShardWriter:
    return ShardWriter(ClaimedFolder(folder), **{"facts": FACTS, "max_bytes": 2**20, "with_text": True, **changes})


def written(folder: Path, *records: SequenceRecord, **changes: Any) -> Path:
    """The one shard of some records."""
    writer = a_writer(folder, **changes)
    for record in records:
        writer.add(record)
    writer.flush()
    writer.close()
    return shard_paths(folder)[-1]


def assert_equal(one: SequenceRecord, other: SequenceRecord) -> None:
    for name in SequenceRecord.__slots__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert getattr(one, name).dtype == getattr(other, name).dtype, name


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = [a_record(1), a_record(2, row_count=1), a_record(3, row_count=40)]
    times = iter([11.5, 12.25])
    shard = read_shard(written(tmp_path / "new", *records, clock=lambda: next(times)))
    assert shard.facts == FACTS
    assert (shard.began, shard.ended) == (11.5, 12.25)
    for record, back in zip(records, read_shards(tmp_path / "new"), strict=True):
        assert_equal(record, back)


def test_a_vocabulary_below_64_tokens_has_shorter_rows(tmp_path: Path) -> None:
    record = a_record(1, vocabulary_size=9)
    (back,) = read_shard(written(tmp_path / "new", record, facts=replace(FACTS, vocabulary_size=9))).records
    assert back.top_ids.shape == (5, 9)
    assert_equal(record, back)


def test_folder_and_shards_are_the_owners_alone(tmp_path: Path) -> None:
    shard = written(tmp_path / "new" / "deep", a_record(1))
    assert shard.stat().st_mode & 0o777 == 0o600
    assert shard.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o707, 0o711])
def test_a_folder_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(RecordsError, match=f"has mode {mode:o}.*with mode 700"):
        a_writer(tmp_path)


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    writer = a_writer(tmp_path / "new")
    with pytest.raises(RecordsError, match="written by another process"):
        a_writer(tmp_path / "new")
    writer.close()
    a_writer(tmp_path / "new").close()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordsError, match="cannot be written"):
        a_writer(tmp_path / "file")
    with pytest.raises(RecordsError, match="is no folder"):
        [*read_shards(tmp_path / "file")]


def test_without_text_no_token_id_is_written_and_reading_is_refused(tmp_path: Path) -> None:
    record = a_record(1)
    shard = written(tmp_path / "new", record, with_text=False)
    with safe_open(shard, framework="numpy") as file:
        assert {*file.keys()} == {"rows", "top_logprobs", "outcomes"}
        outcomes = file.get_tensor("outcomes").tolist()
        np.testing.assert_array_equal(file.get_tensor("top_logprobs"), record.top_logprobs)
    expected = [
        -1 if hint == NO_HINT else int(hint == token) for hint, token in zip(record.hints, record.chosen, strict=True)
    ]
    assert outcomes == expected
    assert {*expected} == {-1, 0, 1}
    with pytest.raises(RecordsError, match="without text"):
        [*read_shards(tmp_path / "new")]


def test_the_oldest_shards_go_and_numbers_go_on(tmp_path: Path) -> None:
    folder, most = tmp_path / "new", 64 * 2**10
    writer = a_writer(folder, max_bytes=most)
    for seed in range(200):
        writer.add(a_record(seed))
    writer.flush()
    writer.close()
    paths = shard_paths(folder)
    sizes = [path.stat().st_size for path in paths]
    assert most - 2 * max(sizes) < sum(sizes) <= most
    assert writer.written_bytes > 2 * most
    numbers = [int(path.stem) for path in paths]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    assert numbers[0] > 1
    assert int(written(folder, a_record(1), max_bytes=most).stem) == numbers[-1] + 1
    *_, last = read_shards(folder)
    assert_equal(last, a_record(1))


def test_a_shard_that_is_deleted_meanwhile_ends_no_writing(tmp_path: Path) -> None:
    written(tmp_path / "new", a_record(1))
    (tmp_path / "new" / "000002.safetensors").symlink_to("nowhere")  # it is listed, and then not there
    assert written(tmp_path / "new", a_record(2)).stem == "000003"


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    a_writer(folder).close()
    (folder / ".unfinished").write_bytes(b"half")
    written(folder, a_record(1))
    assert len([*read_shards(folder)]) == 1
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == ["000001.safetensors"]


def test_a_millionth_shard_is_the_last_one(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    written(folder, a_record(1)).rename(folder / "999999.safetensors")
    assert written(folder, a_record(2)).name == "1000000.safetensors"
    assert_equal([*read_shards(folder)][-1], a_record(2))


def test_no_shards_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="has no shards"):
        [*read_shards(tmp_path)]


def test_two_targets_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    written(folder, a_record(1))
    written(folder, a_record(1), facts=replace(FACTS, name="moved"))
    assert len([*read_shards(folder)]) == 2
    written(folder, a_record(1), facts=replace(FACTS, weights_fingerprint="x"))
    with pytest.raises(
        RecordsError, match=re.escape("000003.safetensors is of another target than 000001.safetensors")
    ):
        [*read_shards(folder)]


def test_a_shard_that_is_rotated_away_meanwhile_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    first, second = written(folder, a_record(1)), written(folder, a_record(2))
    assert first != second
    reading = read_shards(folder)
    next(reading)
    second.unlink()
    assert [*reading] == []


def put(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any], dict[str, str]], None]:
    def changed(tensors: dict[str, Any], _: dict[str, str]) -> None:
        tensors[name] = change(tensors[name])

    return changed


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (put("tokens", lambda t: t[:-1].copy()), "starts does not divide tokens"),
        (put("starts", lambda t: t[::-1].copy()), "starts"),
        (put("tokens", lambda t: t + 1000), "a token id is not from 0 to 999"),
        (put("top_ids", lambda t: -1 - t), "a token id is not from 0 to 999"),
        (put("chosen", lambda t: t.astype(np.int64)), "chosen is int64 and has to be int32"),
        (put("top_logprobs", lambda t: t[:, :63].copy()), "top_logprobs has shape [5, 63] and needs [5, 64]"),
        (put("top_logprobs", lambda t: np.where(t < t.max(), t, np.nan)), "top_logprobs has NaN or infinity"),
        (put("top_logprobs", lambda t: np.where(t > t.min(), t, -np.inf)), "top_logprobs has NaN or infinity"),
        (put("rows", lambda t: t + np.int32(20)), "rows names positions that no sequence has"),
        (put("rows", lambda t: t - np.int32([0, 7])), "rows names positions that no sequence has"),
        (lambda tensors, _: tensors.pop("hints"), "cannot be read"),
        (lambda _, metadata: metadata.pop("vocabulary_size"), "cannot be read"),
        (lambda _, metadata: metadata.update(began="soon"), "cannot be read"),
        (lambda _, metadata: metadata.update(format_version="2"), "has format version 2, and this release reads 1"),
    ],
)
def test_a_damaged_shard_is_named(
    tmp_path: Path, damage: Callable[[dict[str, Any], dict[str, str]], object], said: str
) -> None:
    shard = written(tmp_path / "new", a_record(1))
    tensors = load_file(shard)
    with safe_open(shard, framework="numpy") as file:
        metadata = dict(file.metadata())
    damage(tensors, metadata)
    save_file(tensors, shard, metadata)
    with pytest.raises(RecordsError, match=re.escape(str(shard)) + ".*" + re.escape(said)):
        [*read_shards(tmp_path / "new")]


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    shard = written(tmp_path / "new", a_record(1))
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(RecordsError, match="cannot be read as collected positions"):
        read_shard(shard)
