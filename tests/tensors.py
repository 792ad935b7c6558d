"""Choosing from torch's tensors: tests make logits and references of logits with torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.engine.model import Backend, Segment
from slipstream.engine.torch.host_logits import host_logits
from slipstream.sampling import choose as choosing
from slipstream.sampling import logprobs
from slipstream.sampling.blocks import BlockedLogits, Logits, floats_of
from slipstream.sampling.outcome import TokenLogprobs
from slipstream.sampling.row import Choice, Row


def tensor_of(logits: Logits | BlockedLogits) -> torch.Tensor:
    """Return logits that a backend computed, as float32."""
    return torch.from_numpy(floats_of(logits))


def blocked(logits: torch.Tensor) -> BlockedLogits:
    """Return logits with the maxima of their blocks."""
    return BlockedLogits(host_logits(logits))


def choose(logits: torch.Tensor | Logits | BlockedLogits, rows: Sequence[Row]) -> list[Choice]:
    """Choose from logits of either library."""
    return choosing.choose(host_logits(logits) if isinstance(logits, torch.Tensor) else logits, rows)


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], top_counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return log-probabilities under a tensor's logits."""
    return logprobs.logprobs_of(floats_of(host_logits(logits)), tokens, top_counts)


def forward(backend: Backend, segments: list[Segment]) -> torch.Tensor:
    """Return the logits that a backend computes, as float32."""
    return tensor_of(backend.forward(segments))
