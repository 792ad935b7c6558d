"""A model that two ranks compute, each in a process of its own: a token's logits have the same bits
alone, in a batch, in chunks and in any place. In float32 the texts are those of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.hosting.tokenizer_files import embedded_directory
from tests import tiny_models
from tests.equal_bits import Recorder, check_equal_bits
from tests.ranks import Ranks, check_texts, one_rank


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


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma2"])
def test_two_ranks_share_three_heads_and_odd_columns(family: str, two_ranks: Ranks, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    if family == "gpt_neox":
        heads = {"num_attention_heads": 3, "hidden_size": 96}
    directory = tiny_models.save(tiny_models.build(family, **heads, intermediate_size=129), tmp_path)
    recorder = Recorder(two_ranks.load(directory, "float32"))
    check_equal_bits(recorder)
    check_texts(recorder, one_rank(directory))


def test_two_ranks_serve_a_draft(two_ranks: Ranks, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    backend = two_ranks.load(directory, "float32", exact=False)
    assert backend.single_rows
    check_texts(Recorder(backend), one_rank(directory))
