"""The same token at the same position has the same bits in a prefill, a verify window, any batch,
any chunking, a rebuild."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from tests import tiny_models
from tests.equal_bits import Recorder

LENGTH = 540  # past one key block of 512
START = 470  # the long way there is walked once, then in chunks


def recorder(directory: Path, dtype: str) -> Recorder:
    """Return the recorder of a model on the CPU."""
    return Recorder(PlannedBackend(TransformersModel.load(str(directory), device="cpu", dtype=dtype)))


@pytest.fixture(scope="module", params=["llama", "qwen2", "gpt2"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.build(request.param), tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_have_the_same_bits_however_they_are_computed(directory: Path, dtype: str) -> None:
    compare_bits(recorder(directory, dtype), LENGTH, (START, 100), START)


OTHERS = [
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v3",
    "kolibri1",
    "gpt_oss",
    "granitemoe_swa",
    "mimo_v2_flash",
    "llama4_text",
]
"""Families with experts, sinks or chunks."""


@pytest.mark.parametrize("family", OTHERS)
def test_experts_sinks_and_chunks_keep_the_bits_too(family: str, tmp_path: Path) -> None:
    # In float32: in bfloat16 most sums that differ are rounded to the same number.
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    compare_bits(recorder(directory, "float32"), 160, (30,), 60)


def compare_bits(recorder: Recorder, length: int, chunks: Iterable[int], start: int) -> None:
    """Compute three texts eight tokens at a time, and then beside one another: up to ``start`` in
    ``chunks`` of some size, and on in steps of all sizes."""
    rng = random.Random(0)
    texts = [[rng.randrange(tiny_models.VOCABULARY_SIZE) for _ in range(length)] for _ in range(3)]
    reference = []
    for text in texts:
        sequence = Sequence("reference")
        reference.append(torch.cat([recorder.step([(sequence, text[i : i + 8])])[0] for i in range(0, length, 8)]))
        recorder.engine.cache.release(sequence)
    for chunk in chunks:
        sequences = [Sequence(str(index)) for index in range(3)]
        got = [
            torch.cat([recorder.step([(s, text[i : min(i + chunk, start)])])[0] for i in range(0, start, chunk)])
            for s, text in zip(sequences, texts, strict=True)
        ]
        while any(len(sequence) < length for sequence in sequences):
            parts = []
            for index, sequence in enumerate(sequences):
                # Rounds and small prefill chunks beside one another; sequences join and leave.
                count = min(length - len(sequence), rng.choice((0, 1, 4, 6, 9, 17)))
                if count:
                    parts.append((index, sequence, texts[index][len(sequence) :][:count]))
            if parts:
                logits = recorder.step([(sequence, tokens) for _, sequence, tokens in parts])
                for (index, _, _), part in zip(parts, logits, strict=True):
                    got[index] = torch.cat([got[index], part])
        for index in range(3):
            assert torch.equal(got[index], reference[index]), (chunk, index)
        for sequence in sequences:
            recorder.engine.cache.release(sequence)
    recorder.engine.pool.check()


def test_one_thread_and_two_give_the_same_bits(directory: Path) -> None:
    text = [random.Random(1).randrange(tiny_models.VOCABULARY_SIZE) for _ in range(300)]
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(recorder(directory, "float32").step([(Sequence("a"), text)])[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_more_threads_than_two_split_a_wide_layer_where_no_bit_shows_it(family: str, tmp_path: Path) -> None:
    """torch splits an activation of more than 65,536 numbers, gelu of more than 16,384, into uneven
    parts, each with an end that fills no vector."""
    wide = {"n_inner": 1024} if family == "gpt2" else {"intermediate_size": 1024}
    directory = tiny_models.save(tiny_models.build(family, **wide), tmp_path)
    text = [random.Random(1).randrange(tiny_models.VOCABULARY_SIZE) for _ in range(272)]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        recording = recorder(directory, "float32")
        whole = recording.step([(Sequence("whole"), text)])[0]
        for size in (136, 88, 16):
            sequence = Sequence(str(size))
            parts = [recording.step([(sequence, text[i : i + size])])[0] for i in range(0, len(text), size)]
            assert torch.equal(torch.cat(parts), whole), size
    finally:
        torch.set_num_threads(before)
