"""A model that two ranks compute, each in a process of its own: a token's logits have the same bits
alone, in a batch, in chunks and in any place. In float32 the texts are those of one rank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.hosting.tokenizer_files import embedded_directory
from tests import tiny_models
from tests.equal_bits import Recorder, check_equal_bits
from tests.ranks import Ranks

TEXT_LENGTH = 16
TIE = 1e-3
"""A margin between the two best logits that may explain another token."""


def one_rank(directory: Path, dtype: str = "float32") -> PlannedBackend:
    return PlannedBackend(TransformersModel.load(str(directory), device="cpu", dtype=dtype), page_size=16)


def greedy(recorder: Recorder, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Return a greedy text, and the margin of each token."""
    sequence = Sequence("greedy")
    tokens, margins = [*prompt], []
    for _ in range(TEXT_LENGTH):
        logits = recorder.step([(sequence, tokens[len(sequence) :])])[0][-1]
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    recorder.engine.cache.release(sequence)
    return tokens[len(prompt) :], margins


def check_texts(recorder: Recorder, backend: PlannedBackend) -> None:
    rng, alone = random.Random(1), Recorder(backend)
    prompt = [rng.randrange(backend.model.vocabulary_size) for _ in range(12)]
    text, margins = greedy(recorder, prompt)
    expected, _ = greedy(alone, prompt)
    first = next((at for at, pair in enumerate(zip(text, expected, strict=True)) if pair[0] != pair[1]), None)
    assert first is None or margins[first] < TIE


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    assert ranks.close() == [0]


@pytest.mark.parametrize(
    ("family", "changes", "dtype"),
    [
        ("llama", {"vocab_size": 4095}, "float32"),  # the last part of the vocabulary is shorter
        ("llama", {"tie_word_embeddings": True}, "bfloat16"),
        ("qwen2", {}, "bfloat16"),
        ("gpt_neox", {}, "bfloat16"),  # queries, keys and values in one layer; tensors of older names
        ("qwen3", {}, "float32"),
        ("gemma2", {}, "float32"),
    ],
)
def test_two_ranks_give_a_token_the_same_bits_anywhere(
    family: str, changes: dict[str, Any], dtype: str, two_ranks: Ranks, tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build(family, **changes), tmp_path)
    backend, alone = two_ranks.load(directory, dtype), one_rank(directory, dtype)
    recorder = Recorder(backend)
    check_equal_bits(recorder)
    assert backend.model.weights_fingerprint == alone.model.weights_fingerprint
    assert backend.mark != alone.mark
    if dtype == "float32":
        check_texts(recorder, alone)


def test_two_ranks_serve_the_embedded_target(two_ranks: Ranks) -> None:
    directory = embedded_directory("target")
    recorder = Recorder(two_ranks.load(directory, "float32"))
    check_equal_bits(recorder)
    check_texts(recorder, one_rank(directory))


def test_two_ranks_serve_a_draft(two_ranks: Ranks, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    backend = two_ranks.load(directory, "float32", exact=False)
    assert backend.single_rows
    check_texts(Recorder(backend), one_rank(directory))
