"""Logits of torch as the arrays that tokens are chosen from."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.sampling.blocks import Logits


def host_logits(logits: torch.Tensor) -> Logits:
    """Return logits ``[rows, vocabulary]`` of any float dtype and device as an array on the host:
    bfloat16 as its bits, anything else as float32."""
    if logits.dtype == torch.bfloat16:
        halves: Logits = logits.cpu().contiguous().view(torch.int16).numpy()
        return halves
    singles: Logits = np.ascontiguousarray(logits.detach().float().cpu().numpy())
    return singles
