"""The comparison of a fused module's results with the module's own, up to rounding."""

from __future__ import annotations

import torch

TRIAL_ROWS = 8
"""Rows of a trial's inputs."""

_MOST_ERROR = 2.0**-6
"""Largest relative error: two roundings to bfloat16 and the next number."""


def equal_but_rounding(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return True if two tensors of one shape differ by no more than roundings to bfloat16."""
    expected = expected.float()
    error = (found.float() - expected).abs()
    return bool((error <= _MOST_ERROR * expected.abs() + 1e-30).all())
