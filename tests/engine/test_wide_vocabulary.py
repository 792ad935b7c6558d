"""The pair with more rows in its heads is the pair: the same logits, and none of an added row that
could ever win."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.wide_vocabulary import build
from slipstream.hosting.tokenizer_files import embedded_directory


@pytest.mark.parametrize("role", ["target", "draft"])
def test_added_rows_change_nothing_and_are_out_of_reach(role: str, tmp_path: Path) -> None:
    build(role, 4200, tmp_path)
    tokens = torch.randint(3, 4000, (4, 60), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        small, wide = (
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(tokens).logits
            for model in (embedded_directory(role), tmp_path)
        )
    assert wide.shape == (4, 60, 4200)
    assert float((wide[..., :4096] - small).abs().max()) < 0.5, "as far as rounding a norm's weights goes"
    assert float((wide[..., :4096] - small).abs().mean()) < 0.05
    assert float(wide[..., 4096:].max()) < -100
