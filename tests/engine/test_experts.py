"""Experts in even rows compute what transformers' own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from slipstream.engine.pretrained.fingerprint import experts_of
from slipstream.engine.torch.experts import NAME, even_rows, has_foreign_experts, pack
from tests import tiny_models


def experts_in(model: torch.nn.Module) -> Any:
    return next(module for module in model.modules() if hasattr(module, "_is_expert_parallel"))


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "qwen3_moe"])
@torch.inference_mode()
def test_they_equal_transformers_own(family: str) -> None:
    model = tiny_models.build(family)
    experts = experts_in(model)
    torch.manual_seed(0)
    rows = torch.randn(24, 64)
    chosen = torch.stack([torch.randperm(3)[:2] for _ in range(24)])  # the fourth expert gets no row
    weights = torch.rand(24, 2)
    expected = ALL_EXPERTS_FUNCTIONS["grouped_mm"](experts, rows, chosen, weights)
    torch.testing.assert_close(even_rows(experts, rows, chosen, weights), expected, rtol=1e-4, atol=1e-5)
    pack(model)
    assert not experts.down_proj.numel()
    torch.testing.assert_close(even_rows(experts, rows, chosen, weights), expected, rtol=1e-4, atol=1e-5)


def test_the_implementation_of_experts_is_known_where_there_are_any() -> None:
    mixture, dense = tiny_models.build("mixtral"), tiny_models.build("llama")
    assert (experts_of(mixture), experts_of(dense)) == ("grouped_mm", None)
    mixture.set_experts_implementation(NAME)
    assert experts_of(mixture) == NAME


def test_which_experts_are_on_trial() -> None:
    assert has_foreign_experts(tiny_models.build("llama4_text"))  # and they pass
    assert not any(has_foreign_experts(tiny_models.build(family)) for family in ("llama", "mixtral"))
