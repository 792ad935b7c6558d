"""What a verifier collects of its target's rows is what torch says of them, and collecting changes
no bit of what the target chooses."""

from __future__ import annotations

import asyncio
import os
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.distilling import collector as collecting
from slipstream.distilling.collector import Collector
from slipstream.distilling.open_records import OpenRecords, SeenRows
from slipstream.distilling.records import NO_HINT, SequenceRecord, TargetFacts, read_shards
from slipstream.distilling.shard_writer import ClaimedFolder, ShardWriter
from slipstream.distilling.totals import CollectTotals
from slipstream.engine.compiled import multi_step_runner
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Append, Engine
from slipstream.engine.model import Backend, Segment
from slipstream.engine.run_hints import HintTerms
from slipstream.engine.run_job import RunEnd
from slipstream.engine.schedule import BatchLimits
from slipstream.engine.sequence import Sequence as CachedSequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.blocks import floats_of
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.engine.test_run_hints import hint, start
from tests.engine.test_runs import Bench, bench, prompt_of, said


class Collection:
    """A collector in a new folder, and what it has written once it is closed."""

    def __init__(self, folder: Path, vocabulary_size: int = 259, share: float = 1.0, **changes: Any) -> None:
        facts = TargetFacts("target", "w", "t", 1, vocabulary_size)
        self.folder, self.totals = folder, CollectTotals()
        self.writer = ShardWriter(ClaimedFolder(folder), facts, max_bytes=2**24, with_text=True)
        self.collector = Collector(self.writer, self.totals, share=share, **changes)

    def records(self) -> list[SequenceRecord]:
        self.collector.close()
        return [*read_shards(self.folder)]


def in_torch(logits: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """The 64 likeliest tokens of a row, the lower id first among equals."""
    logprobs = torch.log_softmax(logits, -1)
    ids = torch.argsort(logprobs, descending=True, stable=True)[:64]
    return ids.tolist(), logprobs[ids]


@contextmanager
def recorded_logits(backend: Backend) -> Iterator[dict[tuple[int, ...], torch.Tensor]]:
    """The logits of each row that a backend computes, by the first page and the position."""
    found: dict[tuple[int, ...], torch.Tensor] = {}
    forward = backend.forward

    def recording(segments: list[Segment]) -> Any:
        logits = forward(segments)
        rows = iter(torch.from_numpy(floats_of(logits).copy()))
        for segment in segments:
            for position in range(segment.end - segment.wanted + 1, segment.end + 1):
                found[segment.pages[0], position] = next(rows)
        return logits

    backend.forward = recording  # type: ignore[method-assign]
    yield found


COMPILED, TORCH, HALVES = "compiled", "torch", "compiled, bfloat16"


def engine_of(kind: str, directory: Path) -> Engine:
    saved = str(tiny_models.save(tiny_models.build("llama", head_dim=32), directory))
    if kind == TORCH:
        return Engine(PlannedBackend(TransformersModel.load(saved, device="cpu", dtype="float32")), kv_memory_mib=8)
    dtype = "bfloat16" if kind == HALVES else "float32"
    return Engine(
        load_compiled_checkpoint(saved, dtype=dtype, page_size=16, single_rows=False, threads=1), kv_memory_mib=8
    )


def prompt_for(number: int) -> list[int]:
    return [(7 * number + at) % 100 + 5 for at in range(30 + number)]


def texts_of(engine: Engine, rules: Sequence[SamplingRule], count: int) -> list[list[Choice]]:
    """Return the choices of sequences: of a step over the prompts, of one over hints that are wrong
    at the third token, and of a multi-step run of all together."""
    sequences = [CachedSequence(f"sequence {number}") for number in range(len(rules))]
    prompts = [*map(prompt_for, range(len(rules)))]
    appends = []
    for sequence, prompt, rule in zip(sequences, prompts, rules, strict=True):
        engine.cache.extend(sequence, prompt)
        appends.append(Append(sequence, len(prompt), 1, rule, committed_length=len(prompt)))
    choices = [answer.choices for answer in engine.step(appends)]

    def next_appends(hints: Sequence[Sequence[int]]) -> list[Append]:
        appends = []
        for sequence, made, hinted, rule in zip(sequences, choices, hints, rules, strict=True):
            engine.cache.extend(sequence, [made[-1].token, *hinted])
            length = len(sequence)
            appends.append(
                Append(sequence, 1 + len(hinted), 1 + len(hinted), rule, committed_length=length - len(hinted))
            )
        return appends

    lengths = [len(sequence) for sequence in sequences]
    plain = [answer.choices[0].token for answer in engine.step(next_appends([()] * len(rules)))]
    for sequence, length in zip(sequences, lengths, strict=True):
        engine.cache.truncate(sequence, length)
    hints = [(token, (token + 1) % 100, 3) for token in plain]
    for sequence, made, answer, length in zip(
        sequences, choices, engine.step(next_appends(hints)), lengths, strict=True
    ):
        accepted = 1 if answer.choices[1].token != hints[sequences.index(sequence)][1] else 2
        made += answer.choices[: accepted + 1]
        engine.cache.truncate(sequence, length + 1 + accepted)
    for made, answers in zip(choices, engine.steps(next_appends([()] * len(rules)), count), strict=True):
        made += [answer.choices[0] for answer in answers]
    for sequence in sequences:
        engine.release_sequence(sequence)
    return choices


RULES = [SamplingRule(), SamplingRule(temperature=0.9, seed=4), SamplingRule(temperature=0.7, top_p=0.9, seed=5)]


@pytest.mark.parametrize("kind", [COMPILED, HALVES, TORCH])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_collecting_changes_no_bit_and_collects_what_torch_says(kind: str, share: float, tmp_path: Path) -> None:
    engine = engine_of(kind, tmp_path / "model")
    without = texts_of(engine, RULES, 12)
    collection = Collection(tmp_path / "collected", engine.model.vocabulary_size, share)
    engine.observer = collection.collector
    engine.backend.multi_step_runner = None  # its forwards are not recorded; the next test compares it
    with recorded_logits(engine.backend) as logits:
        choices = texts_of(engine, RULES, 12)
    assert choices == without  # margins too
    records = collection.records()
    watched = [collecting._is_drawn(f"sequence {number}", share) for number in range(len(RULES))]
    assert len(records) >= sum(watched) > 0
    assert all(watched) == (share == 1)
    wholes = [[*prompt_for(number), *(choice.token for choice in made)] for number, made in enumerate(choices)]
    for record in records:
        assert any(record.tokens.tolist() == whole[: len(record.tokens)] for whole in wholes)
        assert record.tokens[record.positions].tolist() == record.chosen.tolist()
    assert max(len(record.tokens) for record in records) == max(map(len, wholes))
    by_ids = defaultdict(list)
    for row in logits.values():
        ids, logprobs = in_torch(row)
        by_ids[tuple(ids)].append(logprobs)
    hinted = np.concatenate([record.hints for record in records]) != NO_HINT
    assert 0 < hinted.sum() < len(hinted)
    for record in records:
        for ids, found in zip(record.top_ids, torch.from_numpy(record.top_logprobs.copy()), strict=True):
            assert any(torch.allclose(found, expected, atol=2e-6) for expected in by_ids[tuple(ids.tolist())])


@pytest.mark.parametrize(("most_steps", "calls_made"), [(99, [12]), (5, [5, 5, 2]), (1, [])])
def test_a_multi_step_run_is_collected_as_its_single_steps_are(
    most_steps: int, calls_made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its three sequences is not watched, and another one ends early."""
    engine = engine_of(HALVES, tmp_path / "model")
    step_bytes = 3 * 4 * engine.backend.model.vocabulary_columns  # type: ignore[attr-defined]
    monkeypatch.setattr(multi_step_runner, "_MOST_KEPT_BYTES", most_steps * step_bytes)
    rules = [SamplingRule(), SamplingRule(temperature=0.9, seed=4), SamplingRule(temperature=2.0, seed=5)]
    (end,) = {choice.token for choice in texts_of(engine, rules, 12)[2][-4:-3]}
    rules[2] = SamplingRule(temperature=2.0, seed=5, end_token_ids=(end,))
    runner = engine.backend.multi_step_runner
    assert runner is not None
    calls: list[int] = []
    run = runner.run

    def counted(*arguments: Any, **more: Any) -> list[list[Choice]]:
        calls.append(len(steps := run(*arguments, **more)))
        return steps

    found: list[tuple[list[list[Choice]], list[SequenceRecord]]] = []
    for folder, used in (("single", None), ("together", runner)):
        engine.backend.multi_step_runner = used
        collection = Collection(tmp_path / folder, engine.model.vocabulary_size)
        engine.observer = collection.collector
        monkeypatch.setattr(collection.collector, "watches", lambda sequence: sequence.handle != "sequence 0")
        monkeypatch.setattr(runner, "run", counted)
        found.append((texts_of(engine, rules, 12), collection.records()))
    (texts, singly), (same, together) = found
    assert same == texts and len(texts[2]) < len(texts[1])
    assert [count for count in calls if count] == calls_made
    assert len(singly) == len(together) > 0
    for one, other in zip(singly, together, strict=True):
        for name in SequenceRecord.__slots__:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


async def collect_with(
    folder: Path, act: Callable[[Bench], Any], *, limits: BatchLimits | None = None
) -> tuple[list[SequenceRecord], CollectTotals]:
    """Return what a host collects during ``act``."""
    collection = Collection(folder)
    async with bench(profiled=False, batch_limits=limits) as it:
        it.host.engine.observer = collection.collector
        await act(it)
    return collection.records(), collection.totals


async def test_rejected_hints_are_collected_and_what_follows_them_is_not(tmp_path: Path) -> None:
    prompt = prompt_of(1, 40)
    right = said(prompt, 46)
    proposal = [*right[:2], (right[2] + 1) % 259, *right[3:5]]

    async def act(it: Bench) -> None:
        job = await it.verify("a", 1, prompt, proposal)
        assert job.accepted_count == 2

    (record,), _ = await collect_with(tmp_path / "new", act)
    assert record.tokens.tolist() == [*prompt, *right[:3]]
    assert record.positions.tolist() == [40, 41, 42]
    assert record.chosen.tolist() == right[:3]
    assert record.hints.tolist() == proposal[:3]
    assert record.top_ids[:, 0].tolist() == right[:3]
    assert (record.top_logprobs[:, 0] > record.top_logprobs[:, 1]).all()


async def test_the_rest_of_a_hint_that_two_steps_share_is_left_out(tmp_path: Path) -> None:
    """The hint's first tokens may be wrong, and the second step cannot see that."""
    prompt = prompt_of(1, 12)
    right = said(prompt, 40)

    async def act(it: Bench) -> None:
        await it.verify("a", 1, prompt, right[:20])

    (record,), _ = await collect_with(tmp_path / "new", act, limits=BatchLimits(prefill_chunk=16))
    assert record.chosen.tolist() == right[:5]
    assert record.hints.tolist() == [*right[:4], NO_HINT]


async def test_a_run_is_one_record_through_hints_and_multi_step_runs(tmp_path: Path) -> None:
    prompt = prompt_of(1, 40)
    text = said(prompt, 400)

    async def act(it: Bench) -> None:
        ear = start(it, "a", prompt, 400, granted=100, terms=HintTerms(fixed_count=12))
        for at in range(100, 400, 64):
            await ear.until_told(at - 40)  # it pauses there, so the next step has the hint
            hint(it, "a", at, [*text[at - 40 : at - 30], 4, 4])
            it.grant("a", min(at + 64, 400))
        assert await ear.end() is RunEnd.UNTIL

    (record,), totals = await collect_with(tmp_path / "new", act)
    assert record.tokens.tolist() == [*prompt, *text]
    assert record.positions.tolist() == [*range(40, 400)]
    assert record.chosen.tolist() == text
    stood = record.hints != NO_HINT
    assert (record.hints[stood] == record.chosen[stood]).sum() == 5 * 10
    assert (record.hints[stood] != record.chosen[stood]).sum() == 5
    assert totals.row_count == 360 and totals.dropped_row_count == 0
    assert totals.byte_count == sum(path.stat().st_size for path in (tmp_path / "new").glob("0*"))


async def test_a_sequence_that_goes_back_begins_another_record(tmp_path: Path) -> None:
    """A return to the same length with other tokens counts as going back too."""
    first = prompt_of(1, 20)
    second = [*first[:10], *prompt_of(2, 20)]

    async def act(it: Bench) -> None:
        for prompt in (first, second, [*second, *said(second, 40)]):
            ear = it.start("a", prompt, len(prompt) + 10)
            await ear.end()

    records, _ = await collect_with(tmp_path / "new", act)
    assert [record.tokens.tolist() for record in records] == [
        [*first, *said(first, 30)],
        [*second, *said(second, 50)],
    ]
    assert [len(record.positions) for record in records] == [10, 20]


async def test_what_there_is_no_room_for_is_dropped_and_counted(tmp_path: Path) -> None:
    collection = Collection(tmp_path / "new", most_waiting_bytes=10)
    async with bench(profiled=False) as it:
        it.host.engine.observer = collection.collector
        await it.start("a", prompt_of(1, 40), 60).end()
    collection.collector.close()
    assert (collection.totals.row_count, collection.totals.dropped_row_count) == (0, 20)
    assert not [*(tmp_path / "new").glob("0*")]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("no idea")])
async def test_an_error_ends_collecting_with_one_warning_and_serving_goes_on(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slipstream.distilling.open_records.MOST_ROWS", 5)
    collection = Collection(tmp_path / "new")
    monkeypatch.setattr(collection.writer, "_shard_bytes", 1)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    async with bench(profiled=False) as it:
        it.host.engine.observer = collection.collector
        await it.start("a", prompt_of(1, 40), 60).end()
        await asyncio.to_thread(collection.collector._thread.join)
        await it.start("b", prompt_of(2, 40), 60).end()
    collection.collector.close()
    assert [record.message for record in caplog.records] == [
        f"collecting into {tmp_path / 'new'} has stopped, and serving goes on: {error}"
    ]
    assert collection.totals.row_count == 0
    assert 5 <= collection.totals.dropped_row_count <= 20
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]
    ClaimedFolder(tmp_path / "new").close()  # it is free again


async def test_a_disk_that_does_not_answer_holds_up_nothing_but_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(collecting, "_LONGEST_CLOSE_SECONDS", 0.1)
    collection = Collection(tmp_path / "new")
    monkeypatch.setattr(os, "fsync", lambda _: answers.wait())
    async with bench(profiled=False) as it:
        it.host.engine.observer = collection.collector
        await it.start("a", prompt_of(1, 40), 60).end()
    collection.collector.close()
    assert "does not answer" in caplog.text
    answers.set()
    collection.collector._thread.join()
    assert collection.totals.row_count == 20


def test_a_share_of_handles_is_drawn_the_same_way_each_time() -> None:
    drawn = {share: {n for n in range(4000) if collecting._is_drawn(f"{n:032x}", share)} for share in (0.05, 0.5, 1.0)}
    assert 140 < len(drawn[0.05]) < 260  # seven standard deviations
    assert drawn[0.05] < drawn[0.5] < drawn[1.0]
    assert len(drawn[1.0]) == 4000


def test_records_end_after_a_pause_or_at_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.distilling.open_records.MOST_ROWS", 3)
    now = 0.0
    records = OpenRecords(lambda: now)

    def add(handle: str, length: int) -> list[SequenceRecord]:
        logits = np.arange(100, dtype=np.float32).reshape(1, 100).view(np.int32)
        return records.add(SeenRows(handle, array("q", range(length)), (), (length,), logits))

    assert add("a", 5) == add("b", 5) == []
    now = 4.0
    assert add("a", 6) == [] == records.take_ended()
    now = 5.5
    (ended,) = records.take_ended()
    assert ended.tokens.tolist() == [*range(6)]
    (full,) = add("a", 7)
    assert full.positions.tolist() == [5, 6, 7]
    assert records.take_all() == []
