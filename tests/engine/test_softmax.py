"""Softmax and log-softmax of a row, to the bit: torch is the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.sampling.softmax import log_softmax, softmax
from tests.vector_lanes import SAME_LANES


def rows(size: int) -> list[torch.Tensor]:
    drawn = torch.randn(12, size, generator=torch.Generator().manual_seed(size)) * torch.logspace(-2, 2, 12)[:, None]
    drawn[::3, 1::3] = -torch.inf
    drawn[1] = drawn[1].bfloat16()
    return [*drawn, torch.zeros(size), torch.full((size,), -200.0).index_fill(0, torch.tensor([0]), 3.0)]


@SAME_LANES
@pytest.mark.parametrize("size", [1, 2, 9, 15, 16, 17, 31, 32, 100, 4096, 49_157])
def test_probabilities_have_torchs_bits(size: int) -> None:
    with np.errstate(invalid="ignore", under="ignore"):
        for row in rows(size):
            assert np.array_equal(softmax(row.numpy()).view(np.int32), row.softmax(0).numpy().view(np.int32))
            assert np.array_equal(log_softmax(row.numpy()).view(np.int32), row.log_softmax(0).numpy().view(np.int32))


def test_probabilities_are_near_the_exact_ones() -> None:
    for row in rows(1000):
        with np.errstate(invalid="ignore", under="ignore"):
            assert np.allclose(softmax(row.numpy()), row.double().softmax(0).numpy(), rtol=1e-5, atol=1e-37)
            assert np.allclose(log_softmax(row.numpy()), row.double().log_softmax(0).numpy(), rtol=1e-5, atol=1e-5)
