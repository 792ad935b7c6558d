"""Optimisers of a draft, and the learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import torch

_BETAS = (0.9, 0.95)
_WARM_UP_SHARE = 0.05
_LAST_SHARE = 0.02


def optimisers(model: Any, name: str, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a model's trained weights. Muon takes the matrices between the
    embedding and the output matrix. The caller sets their learning rate before each step."""
    trained = [(key, weight) for key, weight in model.named_parameters() if weight.requires_grad]
    ends = {id(each.weight) for each in (model.get_input_embeddings(), model.get_output_embeddings())}
    matrices = [w for _, w in trained if name == "muon" and w.ndim == 2 and id(w) not in ends]
    known = set(map(id, matrices))
    vectors = [w for _, w in trained if id(w) not in known]
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    if vectors:
        made.append(torch.optim.AdamW(vectors, betas=_BETAS, weight_decay=weight_decay))
    return made


def rate_at(step: int, step_count: int) -> float:
    """Return the share of the highest learning rate at a step: it rises over the first twentieth of
    the steps, and falls along a cosine to a fiftieth."""
    warm_up = max(1, round(step_count * _WARM_UP_SHARE))
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(1, step_count - warm_up)
    return _LAST_SHARE + (1 - _LAST_SHARE) * (1 + math.cos(math.pi * done)) / 2
