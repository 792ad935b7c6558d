"""Compiled forwards in random order: chunks, rejected tokens, forks, lost and shared pages, and
runs of several steps, of sequences side by side, on any number of threads, over pages that held
other numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.engine.compiled.backend import CompiledBackend
from slipstream.engine.compiled.decoder import Decoder
from slipstream.engine.compiled.gguf_decoder import GgufDecoder
from slipstream.engine.compiled_from_transformers import decoder_of
from slipstream.engine.engine import Append, Engine
from slipstream.engine.model import Segment
from slipstream.engine.pages import MIB
from slipstream.engine.sequence import Sequence
from slipstream.sampling.choose import choose
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.row import Row
from slipstream.sampling.rule import SamplingRule
from tests import gguf_models, tiny_models

SCENARIOS, PAGES = 6, 90
LENGTHS = (1, 2, 15, 16, 17, 32, 33, 64, 65, 90)
"""Lengths of texts, some at the ends of blocks and of the window."""
SMALLEST = {"num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 32, "intermediate_size": 32}
CHECKPOINTS = {
    "float32 window": ("mistral", torch.float32, {"head_dim": 32, "sliding_window": 17}),
    "bfloat16 odd heads": ("llama", torch.bfloat16, {"head_dim": 48, "vocab_size": 63}),
    "float32 smallest": ("llama", torch.float32, SMALLEST | {"head_dim": 32, "vocab_size": 33}),
}
FILES = {
    "Q8_0": ("Q8_0", {}),
    "a mixture": ("Q4_1", {"token_embd": "BF16", "blk.0.attn_k": "F16", "blk.1.ffn_down": "Q8_0"}),
}
RULES = (
    SamplingRule(),
    SamplingRule(temperature=1e-6, seed=2**63 - 1),
    SamplingRule(temperature=100.0, top_p=1e-9, seed=1),
    SamplingRule(temperature=0.8, top_k=7, min_p=0.01, seed=2),
    SamplingRule(temperature=1.0, seed=3, repetition_penalty=1.3, logit_bias=((5, -100.0), (6, 3.0))),
)


def decoder(kind: str, directory: Path) -> Decoder:
    if kind in CHECKPOINTS:
        family, dtype, changes = CHECKPOINTS[kind]
        return decoder_of(tiny_models.build(family, **changes).to(dtype), {})
    weights, kinds = FILES[kind]
    path = directory / "model.gguf"
    if not path.exists():
        gguf_models.write(path, "llama", weights, kinds=kinds, shape=gguf_models.SMALL)
    return GgufDecoder(path, 16)


class Scenario:
    """Some sequences of an engine, and their texts, whose logits are known."""

    def __init__(self, made: Decoder, rng: random.Random, reference: Callable[[list[int]], Floats32]) -> None:
        page_size, threads = rng.choice((16, 32)), rng.choice((1, 2, 3))
        self.backend = CompiledBackend(made, page_size=page_size, single_rows=False, threads=threads)
        self.engine = Engine(self.backend, kv_memory_mib=(PAGES + 0.5) * page_size * made.bytes_per_token / MIB)
        numbers = np.random.default_rng(rng.randrange(1000)).normal(0, 1e3, self.backend._memory.shape)
        bits = numbers.astype(np.float32).view(np.uint32)
        self.backend._memory[:] = bits >> 16 if made.bf16 else bits.view(np.float32)
        self.rng, self.reference, self.size = rng, reference, made.vocabulary_size
        prefix = self._tokens(40)
        own = [self._tokens(rng.choice(LENGTHS)) for _ in range(rng.choice((1, 2, 5, 9)))]
        self.texts = [(prefix[: rng.choice((0, 40))] + text)[: len(text)] for text in own]
        self.sequences = [Sequence(str(at)) for at in range(len(own))]

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.size) for _ in range(count)]

    def read(self) -> None:
        """Append all texts, and compare the logits of each step."""
        known = [self.reference(text) for text in self.texts]
        cache, rng = self.engine.cache, self.rng
        while left := [at for at, text in enumerate(self.texts) if len(self.sequences[at]) < len(text)]:
            parts: list[tuple[Sequence, list[int], int, Floats32]] = []
            for at in rng.sample(left, rng.randint(1, len(left))):
                sequence, text = self.sequences[at], self.texts[at]
                if rng.random() < 0.1:  # preempted; other sequences may have its pages
                    cache.publish(sequence, len(sequence))
                    cache.release(sequence)
                    cache.adopt_prefix(sequence, text)
                if rng.random() < 0.2:
                    fork = cache.fork(sequence, "fork")
                    parts.append((fork, self._tokens(rng.choice((1, 9))), 0, known[at][:0]))
                start = len(sequence)
                right = text[start : start + rng.choice((1, 1, 2, 7, 8, 9, 40))]
                wrong = self._tokens(rng.choice((0, 0, 1, 3, 8)))
                parts.append((sequence, right + wrong, len(right), known[at][start : start + len(right)]))
            rng.shuffle(parts)
            self._step(parts)

    def _step(self, parts: list[tuple[Sequence, list[int], int, Floats32]]) -> None:
        cache, segments = self.engine.cache, []
        for sequence, tokens, _, _ in parts:
            start = len(sequence)
            cache.extend(sequence, tokens)
            segments.append(Segment(tokens, start, sequence.pages, len(tokens)))
        self.backend.copy_pages(cache.take_copies())
        logits, end = self.backend.forward(segments), 0
        for segment, (sequence, tokens, right, expected) in zip(segments, parts, strict=True):
            assert np.array_equal(logits[end : end + right].view(np.uint32), expected.view(np.uint32))
            end += len(tokens)
            cache.truncate(sequence, 0 if sequence.is_fork else segment.start + right)

    def run(self) -> None:
        """Choose several tokens in one call, and compare them with those of one step each."""
        rules, count = [self.rng.choice(RULES) for _ in self.texts], self.rng.choice((1, 2, 9))
        for sequence in self.sequences:
            self.engine.cache.truncate(sequence, len(sequence) - 1)
        appends = []
        for sequence, text, rule in zip(self.sequences, self.texts, rules, strict=True):
            self.engine.cache.extend(sequence, text[-1:])
            appends.append(Append(sequence, 1, 1, rule))
        for text, rule, answers in zip(self.texts, rules, self.engine.run_multi_step(appends, count), strict=True):
            said = [*text, *(answer.choices[0].token for answer in answers)]
            logits, first = self.reference(said), len(text)
            rows = [Row(rule, at, said) for at in range(first, len(said))]
            for chosen in (
                choose(logits[first - 1 : -1], rows),
                [choose(logits[r.position - 1 :][:1], [r])[0] for r in rows],
            ):
                assert [choice.token for choice in chosen] == said[first:]
        for sequence in self.sequences:
            self.engine.cache.release(sequence)
        self.engine.pool.check()


@pytest.mark.parametrize("kind", [*CHECKPOINTS, *FILES])
def test_bits_are_a_sequences_own_in_any_order_of_work(kind: str, tmp_path: Path) -> None:
    alone = CompiledBackend(decoder(kind, tmp_path), page_size=16, single_rows=False, threads=1)
    alone.reserve(PAGES * 16 * alone.model.bytes_per_token / MIB)

    def reference(text: list[int]) -> Floats32:
        return alone.forward([Segment(text, 0, range(1, 2 + len(text) // 16), len(text))])

    for seed in range(SCENARIOS):
        scenario = Scenario(decoder(kind, tmp_path), random.Random(seed), reference)
        scenario.read()
        scenario.run()
