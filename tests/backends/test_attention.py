"""Paged attention: each query has the same bits in every batch, and attends to the keys that it
may see."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from slipstream.engine.model import Segment
from slipstream.engine.pretrained.windows import WHOLE, Sight
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

    def attend(self, parts: list[tuple[int, int, int]], sight: Sight = WHOLE, **how: Any) -> list[torch.Tensor]:
        """For each (sequence, start, end) its rows' attention ``[tokens, heads, size]``."""
        segments = [Segment([0] * (end - start), start, self.pages[index], 0) for index, start, end in parts]
        plan = build_plan(segments, PAGE_SIZE, torch.device("cpu"), BATCH_INVARIANT)
        rows = torch.cat([self.tokens[index][:, start:end] for index, start, end in parts], dim=1)
        rows = F.pad(rows, (0, 0, 0, 0, 0, plan.slots.shape[0] - rows.shape[1]))
        query, key, value = rows.transpose(1, 2).unsqueeze(1)
        self.memory.layers = [replace(layer, sight=sight) for layer in self.memory.layers]
        told = Attending(plan, self.memory, GATHERED)
        output, _ = paged_attention(Layer(), query, key, value, None, plan=told, **how)
        counts = [end - start for _, start, end in parts]
        return list(output[0, : sum(counts)].split(counts))


SIGHTS = [WHOLE, Sight(window=200), Sight(chunk=200)]


def drawn_sinks(heads: int) -> torch.Tensor:
    return torch.linspace(-3.0, 6.0, heads)


@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("heads", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_query_has_the_same_bits_in_every_batch(
    dtype: torch.dtype, heads: int, sight: Sight, has_sinks: bool
) -> None:
    sequences = Sequences(heads, 64, dtype)
    how = {"s_aux": drawn_sinks(heads)} if has_sinks else {}
    whole = [sequences.attend([(index, 0, length)], sight, **how)[0] for index, length in enumerate(LENGTHS)]
    rng = random.Random(heads)
    for _ in range(60):
        parts = []
        for index in rng.sample(range(len(LENGTHS)), rng.randint(1, len(LENGTHS))):
            start = rng.randrange(LENGTHS[index])
            parts.append((index, start, min(LENGTHS[index], start + rng.choice((1, 1, 3, 8, 21)))))
        for (index, start, end), got in zip(parts, sequences.attend(parts, sight, **how), strict=True):
            assert torch.equal(got, whole[index][start:end]), (index, start, end, parts)


@pytest.mark.parametrize("softcap", [None, 1e6])  # which bends nothing, and takes the walk
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@torch.inference_mode()
def test_it_is_attention(sight: Sight, has_sinks: bool, softcap: float | None) -> None:
    sequences = Sequences(3, 64, torch.float32)
    sinks = drawn_sinks(3) if has_sinks else torch.full((3,), -torch.inf)
    for index, length in enumerate(LENGTHS):
        query, key, value = sequences.tokens[index].transpose(1, 2)
        positions = torch.arange(length)
        seen = (positions <= positions[:, None]) & (positions >= sight.first_keys(positions)[:, None])
        scores = (query @ key.transpose(1, 2) / 8).masked_fill(~seen, -torch.inf)
        weights = torch.cat([scores, sinks.view(3, 1, 1).expand(3, length, 1)], dim=-1).softmax(-1)[..., :-1]
        how = {"s_aux": sinks} if has_sinks else {}
        attended = sequences.attend([(index, 0, length)], sight, softcap=softcap, **how)[0]
        torch.testing.assert_close(attended, (weights @ value).transpose(0, 1), rtol=1e-4, atol=1e-5)
