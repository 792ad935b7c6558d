"""The same token at the same position has the same bits, however a backend computes it."""

from __future__ import annotations

import random

import torch

from slipstream.engine.engine import Engine
from slipstream.engine.model import Backend, Segment
from slipstream.engine.sequence import Sequence
from tests.tensors import tensor_of

LENGTH, CHUNK_LENGTH = 140, 41
"""Tokens of a text, past the first block of 128 keys, and of a chunk of one."""


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


def check_equal_bits(recorder: Recorder) -> None:
    rng = random.Random(0)
    texts = [[rng.randrange(recorder.engine.model.vocabulary_size) for _ in range(LENGTH)] for _ in range(3)]
    alone = [recorder.alone(text, LENGTH) for text in texts]
    assert torch.equal(recorder.alone(texts[0], CHUNK_LENGTH), alone[0])
    for logits, expected in zip(recorder.together(texts, rng), alone, strict=True):
        assert torch.equal(logits, expected)
    recorder.engine.pool.check()
