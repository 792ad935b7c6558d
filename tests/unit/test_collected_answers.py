"""Which answers are in the shards of a folder: whole ones, as long as their shards are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.distilling.collected_answers import JOURNAL, CollectedAnswers
from slipstream.distilling.records import RecordsError, SequenceRecord, shard_paths
from tests.unit.test_distilling_records import a_record, a_writer

PROMPT = 7
"""Length of each prompt in tokens."""


def tokens_of(record: SequenceRecord) -> list[int]:
    """Return the answer that a record has."""
    return [int(token) for token in record.tokens[PROMPT:]]


def written(folder: Path, *records: SequenceRecord, max_bytes: int = 2**20) -> None:
    writer = a_writer(folder, max_bytes=max_bytes)
    for record in records:
        writer.add(record)
    writer.flush()
    writer.close()


def expecting(folder: Path, **answers: Sequence[int]) -> CollectedAnswers:
    collected = CollectedAnswers(folder)
    for key, tokens in answers.items():
        collected.expect(key, PROMPT, tokens)
    return collected


def part(record: SequenceRecord, begin: int, end: int) -> SequenceRecord:
    """Return rows of a record as one that was complete earlier."""
    return SequenceRecord(
        record.tokens[: PROMPT + end],
        *(getattr(record, name)[begin:end] for name in ("positions", "top_ids", "top_logprobs", "chosen", "hints")),
    )


def test_an_answer_is_collected_once_its_shard_is_there(tmp_path: Path) -> None:
    folder, record = tmp_path / "new", a_record(1)
    collected = expecting(folder, one=tokens_of(record), cut=tokens_of(record)[:-1], other=[3, 1, 4])
    collected.look()
    assert not collected.has("one")
    written(folder, record, a_record(2), replace(record, chosen=record.chosen + 1))
    collected.look()
    for again in (collected, CollectedAnswers(folder)):
        assert [again.has(key) for key in ("one", "cut", "other")] == [True, True, False]
    assert (folder / JOURNAL).stat().st_mode & 0o777 == 0o600


def test_each_of_two_like_answers_needs_rows_of_its_own(tmp_path: Path) -> None:
    record = a_record(1)
    collected = expecting(tmp_path / "new", one=tokens_of(record), other=tokens_of(record))
    written(tmp_path / "new", record)
    collected.look()
    assert [collected.has(key) for key in ("one", "other")] == [True, False]
    written(tmp_path / "new", record)
    collected.look()
    assert collected.has("one") and collected.has("other")


def test_a_long_answer_is_in_several_shards_and_in_some_before_it_ends(tmp_path: Path) -> None:
    folder, record = tmp_path / "new", a_record(1, row_count=40)
    collected = CollectedAnswers(folder)
    written(folder, part(record, 0, 15))
    written(folder, part(record, 15, 30))
    collected.look()
    collected.expect("one", PROMPT, tokens_of(record))
    collected.look()
    assert not collected.has("one")
    written(folder, part(record, 30, 40))
    collected.look()
    assert collected.has("one")
    shard_paths(folder)[1].unlink()
    collected.look()
    assert collected.had("one") and not collected.has("one")


@pytest.mark.parametrize("kept", [[*range(1, 40)], [*range(39)], [*range(10), *range(11, 40)]])
def test_an_answer_without_one_of_its_rows_is_not_collected(kept: list[int], tmp_path: Path) -> None:
    record = a_record(1, row_count=40)
    collected = expecting(tmp_path / "new", one=tokens_of(record))
    rows = SequenceRecord(
        record.tokens[: PROMPT + kept[-1] + 1],
        *(getattr(record, name)[kept] for name in ("positions", "top_ids", "top_logprobs", "chosen", "hints")),
    )
    written(tmp_path / "new", rows)
    collected.look()
    assert not collected.has("one")


def test_an_empty_answer_takes_no_rows_of_another_one(tmp_path: Path) -> None:
    record = a_record(1)
    collected = expecting(tmp_path / "new", empty=[], one=tokens_of(record))
    written(tmp_path / "new", record)
    collected.look()
    assert [collected.has(key) for key in ("empty", "one")] == [False, True]
    written(tmp_path / "new", part(a_record(2), 0, 1))
    collected.look()
    assert collected.has("empty")


def test_an_answer_whose_shard_was_deleted_or_rotated_away_is_not_there(tmp_path: Path) -> None:
    folder, records = tmp_path / "new", [a_record(seed, row_count=100) for seed in range(6)]
    collected = expecting(folder, **{f"{at}": tokens_of(record) for at, record in enumerate(records)})
    for record in records:
        written(folder, record, max_bytes=3 * records[0].byte_count + 6000)
        collected.look()
    assert [collected.has(f"{at}") for at in range(6)] == [False] * 3 + [True] * 3
    assert [CollectedAnswers(folder).has(f"{at}") for at in range(6)] == [False] * 3 + [True] * 3
    for path in shard_paths(folder):
        path.unlink()
    written(folder, a_record(9))  # it has the number of the first one
    assert not any(CollectedAnswers(folder).has(f"{at}") for at in range(6))


def test_shards_that_came_and_went_between_two_looks_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    collected = CollectedAnswers(folder)
    for number in range(1, 4):
        written(folder, a_record(number))
        collected.look()
        shard_paths(folder)[0].unlink()
        assert not collected.missed
    written(folder, a_record(4))
    shard_paths(folder)[0].rename(folder / "000005.safetensors")
    collected.look()
    assert collected.missed


def test_a_journal_without_shards_says_nothing(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("one\nother 1.5\n\n")
    collected = CollectedAnswers(tmp_path)
    assert not collected.has("one") and not collected.has("other")


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    folder, record = tmp_path / "new", a_record(1)
    collected = expecting(folder, one=tokens_of(record))
    written(folder, record)
    (folder / JOURNAL).symlink_to("/dev/full")
    with pytest.raises(
        RecordsError, match=r"\.answered cannot be written: .*Make room there, and run the command again"
    ):
        collected.look()
    (folder / JOURNAL).unlink()
    (folder / JOURNAL).write_bytes(b"\xff")
    with pytest.raises(RecordsError, match=r"\.answered cannot be read"):
        CollectedAnswers(folder)
    (folder / "000002.safetensors").write_bytes(b"damaged")
    with pytest.raises(RecordsError, match=r"000002\.safetensors cannot be read"):
        CollectedAnswers(folder)
