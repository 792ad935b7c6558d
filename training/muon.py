"""Muon (Jordan et al. 2024) in float32: momentum whose matrices are made nearly orthogonal.

torch's own computes in bfloat16, which takes ten times as long on a processor that has no
instruction for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_MOMENTUM = 0.95
_ITERATIONS = 5
_FACTORS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration, from the paper."""


class Muon(torch.optim.Optimizer):
    """Optimizer of matrices."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], lr: float, weight_decay: float = 0.01) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Change each matrix by its gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, _MOMENTUM))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                # As large as an update of AdamW.
                matrix.add_(update, alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix with the same singular vectors, and singular values near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide: torch.Tensor = matrix.T if is_tall else matrix
    wide = wide / (wide.norm() + 1e-7)
    first, second, third = _FACTORS
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = first * wide + (second * gram + third * gram @ gram) @ wide
    return wide.T if is_tall else wide
