"""A model that several ranks compute, each in a process of its own: a token's logits have the same
bits alone, in a batch, in chunks and in any place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slipstream.engine.engine import Engine
from slipstream.engine.model import Backend, Segment
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.hosting.tokenizer_files import embedded_directory
from tests import tiny_models
from tests.ranks import Ranks
from tests.tensors import tensor_of

LENGTH, CHUNK_LENGTH = 180, 41  # past the first key block of 128
TEXT_LENGTH = 24
TIE = 1e-3
"""A margin between the two best logits that may explain another token."""


class Recorder:
    """An engine's backend driven directly, with the logits of each appended token."""

    def __init__(self, backend: Backend) -> None:
        self.engine = Engine(backend, kv_memory_mib=8)

    def step(self, parts: list[tuple[Sequence, list[int]]]) -> list[torch.Tensor]:
        """Append tokens to sequences in one forward. Returns logits ``[tokens, vocabulary]`` of
        each."""
        segments = []
        for sequence, tokens in parts:
            start = len(sequence)
            self.engine.cache.extend(sequence, tokens)
            segments.append(Segment(tokens, start, sequence.pages, len(tokens)))
        self.engine.backend.copy_pages(self.engine.cache.take_copies())
        return list(tensor_of(self.engine.backend.forward(segments)).split([len(tokens) for _, tokens in parts]))

    def alone(self, text: list[int], count: int) -> torch.Tensor:
        """Return the logits of a text that is computed in chunks of ``count`` tokens."""
        sequence = Sequence("alone")
        logits = [self.step([(sequence, text[at : at + count])])[0] for at in range(0, len(text), count)]
        self.engine.cache.release(sequence)
        return torch.cat(logits)

    def together(self, texts: list[list[int]], rng: random.Random) -> list[torch.Tensor]:
        """Return the logits of texts whose chunks of random lengths share forwards, in random
        order."""
        sequences = [Sequence(str(at)) for at in range(len(texts))]
        logits: list[list[torch.Tensor]] = [[] for _ in texts]
        while waiting := [at for at, text in enumerate(texts) if len(sequences[at]) < len(text)]:
            chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
            parts = [(sequences[at], texts[at][len(sequences[at]) :][: rng.choice((1, 5, 8, 23, 60))]) for at in chosen]
            for at, part in zip(chosen, self.step(parts), strict=True):
                logits[at].append(part)
        for sequence in sequences:
            self.engine.cache.release(sequence)
        return [torch.cat(parts) for parts in logits]


def check_equal_bits(backend: Backend) -> None:
    recorder, rng = Recorder(backend), random.Random(0)
    texts = [[rng.randrange(backend.model.vocabulary_size) for _ in range(LENGTH)] for _ in range(3)]
    alone = [recorder.alone(text, LENGTH) for text in texts]
    assert torch.equal(recorder.alone(texts[0], CHUNK_LENGTH), alone[0])
    for _ in range(2):
        for logits, expected in zip(recorder.together(texts, rng), alone, strict=True):
            assert torch.equal(logits, expected)
    recorder.engine.pool.check()


def one_rank(directory: Path, dtype: str = "float32") -> PlannedBackend:
    return PlannedBackend(TransformersModel.load(str(directory), device="cpu", dtype=dtype), page_size=16)


def greedy(backend: Backend, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Return a greedy text, and the margin of each token."""
    recorder, sequence = Recorder(backend), Sequence("greedy")
    tokens, margins = [*prompt], []
    for _ in range(TEXT_LENGTH):
        logits = recorder.step([(sequence, tokens[len(sequence) :])])[0][-1]
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    return tokens[len(prompt) :], margins


def check_texts(backend: Backend, directory: Path) -> None:
    rng = random.Random(1)
    for _ in range(2):
        prompt = [rng.randrange(backend.model.vocabulary_size) for _ in range(12)]
        text, margins = greedy(backend, prompt)
        expected, _ = greedy(one_rank(directory), prompt)
        first = next((at for at, pair in enumerate(zip(text, expected, strict=True)) if pair[0] != pair[1]), None)
        assert first is None or margins[first] < TIE


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    assert ranks.close() == [0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_two_ranks_give_a_token_the_same_bits_anywhere(
    family: str, dtype: str, two_ranks: Ranks, tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    check_equal_bits(two_ranks.load(directory, dtype))


def test_two_ranks_serve_the_embedded_target(two_ranks: Ranks) -> None:
    directory = embedded_directory("target")
    backend, alone = two_ranks.load(directory, "float32"), one_rank(directory)
    check_equal_bits(backend)
    check_texts(backend, directory)
    assert backend.model.weights_fingerprint == alone.model.weights_fingerprint
    assert backend.mark != alone.mark
