"""Experts in even rows compute what transformers' own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from slipstream.engine.pretrained.fingerprint import experts_of
from slipstream.engine.torch.activations import has_partial_vectors, in_whole_vectors, route_in_whole_vectors
from slipstream.engine.torch.experts import NAME, even_rows, is_mixture, pack
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


def test_mixtures_are_on_trial() -> None:
    assert all(is_mixture(tiny_models.build(family)) for family in ("llama4_text", "mixtral", "kolibri1"))
    assert not is_mixture(tiny_models.build("llama"))


def test_widths_that_fill_no_vectors_are_on_trial() -> None:
    assert not has_partial_vectors(tiny_models.build("llama"))
    assert has_partial_vectors(tiny_models.build("llama", intermediate_size=130))


@pytest.mark.parametrize("shape", [(8, 64), (1, 24, 64), (40, 64)])
def test_a_router_sees_whole_vectors_of_rows(shape: tuple[int, ...]) -> None:
    seen: list[int] = []

    def route(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(rows.shape[-2])
        scores, chosen = torch.topk(rows.reshape(-1, 64), 2)
        return scores.sigmoid().view(*rows.shape[:-1], 2), chosen

    torch.manual_seed(0)
    rows = torch.randn(shape)
    scores, chosen = in_whole_vectors(route)(rows)
    expected, right = route(rows)
    torch.testing.assert_close(scores, expected)
    assert torch.equal(chosen, right)
    assert seen[0] % 32 == 0


@torch.inference_mode()
@pytest.mark.parametrize("chosen_count", [1, 2, 3])
def test_a_routers_weights_of_a_row_have_the_same_bits_beside_any_rows(chosen_count: int) -> None:
    model = tiny_models.build("kolibri1", num_experts_per_tok=chosen_count, norm_topk_prob=False)
    route_in_whole_vectors(model)
    router: Any = next(module for module in model.modules() if "Router" in type(module).__name__)
    torch.manual_seed(0)
    rows = torch.randn(256, 64)
    _, many, _ = router(rows)
    for start in range(0, 256, 8):
        assert torch.equal(router(rows[start : start + 8])[1], many[start : start + 8])
