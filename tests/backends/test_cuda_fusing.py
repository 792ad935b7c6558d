"""What a model's parts are replaced by on CUDA, by Triton's interpreter: the same numbers, and only
where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="Triton is there on Linux")

from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as apply_to_neighbours
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from slipstream.engine.torch.cuda.fusing import fuse
from slipstream.engine.torch.cuda.gates import GatedBlock, fuse_gates, gate
from slipstream.engine.torch.cuda.logits import HostLogits, find_maxima
from slipstream.engine.torch.cuda.products import JoinedLinear, join_products
from slipstream.engine.torch.cuda.recorded_forward import same_bits
from slipstream.engine.torch.cuda.rotary import fuse_rotary, rotate
from slipstream.engine.torch.host_logits import host_logits
from slipstream.sampling.blocks import BlockedLogits
from slipstream.sampling.row import VOID, Row
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.tensors import blocked, choose, tensor_of

pytestmark = [
    pytest.mark.usefixtures("products_by_row"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp"),  # a device reports none
]
IDS = torch.arange(12).unsqueeze(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_fused_kernels_change_no_bit(family: str) -> None:
    model = tiny_models.build(family)
    with torch.inference_mode():
        expected = model(IDS).logits
        fuse(model)
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [16, 24])
def test_rotary_positions_have_the_modules_own_bits(size: int) -> None:
    queries, keys = (torch.randn(1, 5, heads, size).transpose(1, 2) for heads in (11, 3))
    angles = torch.randn(1, 5, size), torch.randn(1, 5, size)
    for found, expected in zip(
        rotate(queries, keys, *angles), apply_rotary_pos_emb(queries, keys, *angles), strict=True
    ):
        assert found.shape == expected.shape and same_bits(found.contiguous(), expected.contiguous())


def test_only_the_modules_of_one_model_rotate_by_a_kernel() -> None:
    fused, other = tiny_models.build("llama"), tiny_models.build("llama")
    with torch.inference_mode():
        expected = other(IDS).logits
        assert fuse_rotary(fused) == 2
        assert fuse_rotary(fused) == 0  # it is already
        assert torch.equal(fused(IDS).logits, expected)
    assert "forward" not in vars(other.model.layers[0].self_attn)
    assert type(fused.model.layers[0].self_attn).forward.__globals__["apply_rotary_pos_emb"] is apply_rotary_pos_emb


def test_what_rotates_otherwise_goes_on_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.build("llama")
    names = type(model.model.layers[0].self_attn).forward.__globals__
    for own in (apply_to_neighbours, lambda queries, keys: (queries, keys), None):
        monkeypatch.setitem(names, "apply_rotary_pos_emb", own)
        assert fuse_rotary(model) == 0


def test_what_is_called_otherwise_is_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.build("llama")
    assert fuse_rotary(model) == 2
    fused = model.model.layers[0].self_attn.forward.__func__.__globals__["apply_rotary_pos_emb"]
    queries, angles = torch.randn(1, 2, 5, 16), torch.randn(1, 5, 16)
    expected = apply_rotary_pos_emb(queries, queries, angles, angles)
    for found in (
        fused(q=queries, k=queries, cos=angles, sin=angles),
        fused(queries, queries, angles, angles, unsqueeze_dim=1),
    ):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_part_of_each_head_is_rotated_as_the_model_would(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_models.build("gpt_neox")  # a quarter
    with torch.inference_mode():
        expected = model(IDS).logits
        fuse_rotary(model)
        assert torch.equal(model(IDS).logits, expected)


def test_a_gate_is_activated_and_multiplied() -> None:
    both = torch.randn(2, 3, 2 * 1500)
    torch.testing.assert_close(
        gate(both), nn.functional.silu(both[..., :1500]) * both[..., 1500:], rtol=1e-6, atol=1e-6
    )


def test_blocks_gated_by_a_silu_are_replaced() -> None:
    model = tiny_models.build("llama")
    with torch.inference_mode():
        expected = model(IDS).logits
        assert fuse_gates(model) == 2
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert sum(isinstance(module, GatedBlock) for module in model.modules()) == 2


class Ungated(nn.Module):
    """Has the names, and computes something else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(24, 8)
        self.kind = kind

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        others = inputs + 1 if self.kind == "other inputs" else inputs
        gates, values = self.gate_proj(inputs), self.up_proj(others)
        if self.kind == "clamped":
            gates, values = gates.clamp(max=10), values.clamp(-10, 10)
        activation = nn.functional.gelu if self.kind == "other activation" else nn.functional.silu
        outputs: torch.Tensor = self.down_proj(activation(gates) * values)
        return outputs + inputs if self.kind == "more after it" else outputs


@pytest.mark.parametrize(
    ("kind", "count"), [("", 1), ("other inputs", 0), ("other activation", 0), ("clamped", 0), ("more after it", 0)]
)
def test_a_block_is_replaced_where_it_is_gated_and_no_more(kind: str, count: int) -> None:
    model = nn.Sequential(Ungated(kind))
    inputs = torch.randn(3, 8)
    with torch.inference_mode():
        expected = model(inputs)
        assert fuse_gates(model) == count
        torch.testing.assert_close(model(inputs), expected)


class Projections(nn.Module):
    """As attention has them."""

    def __init__(self, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(8, features, bias=bias) for features, bias in zip((16, 4, 4), biases, strict=True)
        )

    def forward(self, queried: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q_proj(queried), self.k_proj(others), self.v_proj(others)], dim=-1)


@pytest.mark.parametrize("bias", [False, True])
def test_joined_products_are_those_of_each(bias: bool) -> None:
    own = Projections((bias,) * 3)
    inputs, others = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    with torch.inference_mode():
        expected = own(inputs, inputs), own(inputs, others)
        weight = own.k_proj.weight.clone()
        assert join_products(own) == 1
        joined = own.k_proj
        assert isinstance(joined, JoinedLinear) and torch.equal(joined.weight, weight)
        for _ in range(2):
            torch.testing.assert_close(own(inputs, inputs), expected[0])
            assert joined.joint.inputs is joined.joint.outputs is None  # they are let go
            torch.testing.assert_close(own(inputs, others), expected[1])


def test_products_of_which_some_have_a_bias_are_not_joined() -> None:
    own = Projections((True, False, False))
    assert join_products(own) == 0 and type(own.q_proj) is nn.Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1000, 64 * 64 + 64])
def test_maxima_are_those_that_choosing_finds(dtype: torch.dtype, size: int) -> None:
    logits = (torch.randn(7, size) * 3).to(dtype)
    logits[1, 100], logits[1, 101] = float("nan"), -float("nan")
    logits[2] = -float("inf")
    logits[3, size - 1] = 50
    logits[4] = -logits[4].abs()
    logits[5, 10] = float("inf")
    found, expected = find_maxima(logits), torch.from_numpy(blocked(logits).maxima)
    assert torch.equal(found.isnan(), expected.isnan())
    assert same_bits(found.nan_to_num(0.0), expected.nan_to_num(0.0))
    rows = [Row(SamplingRule(temperature=temperature, seed=3), 7) for temperature in (0.0, *[1.0] * 6)]
    known = BlockedLogits(host_logits(logits), found.numpy())
    assert np.array_equal(known.largest(), blocked(logits).largest(), equal_nan=True)
    if dtype == torch.bfloat16:  # a head of another dtype than its model's: maxima are those of what is kept
        host = HostLogits(size, dtype, pinned=False)
        host.make_room(7)
        host.fetch(logits.float() + 0.001, 0)
        kept = host.first(7)
        assert np.array_equal(kept.maxima, blocked(tensor_of(kept)).maxima, equal_nan=True)
    tokens = [choice.token for choice in choose(known, rows)]
    assert tokens == [choice.token for choice in choose(logits, rows)] and tokens[1] == VOID
