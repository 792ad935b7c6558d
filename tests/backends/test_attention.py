"""Paged attention: each query has the same bits in every batch, and attends to the keys that it
may see."""

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from slipstream.engine.model import Segment
from slipstream.engine.torch.attention import GATHERED, Attending, paged_attention
from slipstream.engine.torch.kv_memory import KvMemory, LayerShape
from slipstream.engine.torch.plan import BATCH_INVARIANT, build_plan

PAGE_SIZE = 16
LENGTHS = (90, 130, 300, 641, 700)


class Layer(torch.nn.Module):
    layer_idx = 0


class Sequences:
    """Keys and values of a few sequences in memory, and a query for each of their tokens."""

    def __init__(self, heads: int, size: int, dtype: torch.dtype) -> None:
        torch.manual_seed(heads * size)
        page_counts = [-(-length // PAGE_SIZE) for length in LENGTHS]
        self.memory = KvMemory([LayerShape(heads, size, size)], sum(page_counts), PAGE_SIZE, dtype, torch.device("cpu"))
        self.tokens = [torch.randn(3, length, heads, size, dtype=dtype) for length in LENGTHS]  # queries, keys, values
        free = list(range(1, sum(page_counts) + 1))
        random.Random(1).shuffle(free)
        self.pages = [[free.pop() for _ in range(count)] for count in page_counts]
        for index, length in enumerate(LENGTHS):
            self.attend([(index, 0, length)])

    def attend(self, parts: list[tuple[int, int, int]], window: int | None = None) -> list[torch.Tensor]:
        """For each (sequence, start, end) its rows' attention ``[tokens, heads, size]``."""
        segments = [Segment([0] * (end - start), start, self.pages[index], 0) for index, start, end in parts]
        plan = build_plan(segments, PAGE_SIZE, torch.device("cpu"), BATCH_INVARIANT)
        rows = torch.cat([self.tokens[index][:, start:end] for index, start, end in parts], dim=1)
        rows = F.pad(rows, (0, 0, 0, 0, 0, plan.slots.shape[0] - rows.shape[1]))
        query, key, value = rows.transpose(1, 2).unsqueeze(1)
        self.memory.layers = [replace(layer, window=window) for layer in self.memory.layers]
        told = Attending(plan, self.memory, GATHERED)
        output, _ = paged_attention(Layer(), query, key, value, None, plan=told)
        counts = [end - start for _, start, end in parts]
        return list(output[0, : sum(counts)].split(counts))


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("heads", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_query_has_the_same_bits_in_every_batch(dtype: torch.dtype, heads: int, window: int | None) -> None:
    sequences = Sequences(heads, 64, dtype)
    whole = [sequences.attend([(index, 0, length)], window)[0] for index, length in enumerate(LENGTHS)]
    rng = random.Random(heads)
    for _ in range(60):
        parts = []
        for index in rng.sample(range(len(LENGTHS)), rng.randint(1, len(LENGTHS))):
            start = rng.randrange(LENGTHS[index])
            parts.append((index, start, min(LENGTHS[index], start + rng.choice((1, 1, 3, 8, 21)))))
        for (index, start, end), got in zip(parts, sequences.attend(parts, window), strict=True):
            assert torch.equal(got, whole[index][start:end]), (index, start, end, parts)


@pytest.mark.parametrize("window", [None, 200])
@torch.inference_mode()
def test_it_is_attention(window: int | None) -> None:
    sequences = Sequences(3, 64, torch.float32)
    for index, length in enumerate(LENGTHS):
        query, key, value = sequences.tokens[index].transpose(1, 2)
        positions = torch.arange(length)
        seen = positions[:, None] >= positions
        if window is not None:
            seen &= positions[:, None] - positions < window
        expected = F.scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(0, 1)
        torch.testing.assert_close(sequences.attend([(index, 0, length)], window)[0], expected, rtol=1e-4, atol=1e-5)
