"""A plan's bytes beside those of transformers' own models and of the engine."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.pages import MIB
from slipstream.engine.torch import attention
from slipstream.engine.torch.kv_memory import LayerShape, bytes_per_page
from slipstream.engine.torch.parallel.division import divide
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.planning import families
from slipstream.planning.families import FAMILIES
from slipstream.planning.formats import format_of
from slipstream.planning.models import known_models, model_shape
from slipstream.planning.steps import PlannedModel
from tests import gguf_models, tiny_models

REAL = [
    "deepseek-v3",
    "gemma-2-9b",
    "gemma-3-1b",
    "gpt-oss-20b",
    "granite-3.3-8b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "mistral-7b",
    "mixtral-8x7b",
    "olmo-2-32b",
    "phi-4",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "qwen3-8b",
]
"""Models of their real sizes."""

UNPROBED = {"gpt_oss", "mixtral", "qwen3_moe", "deepseek_v3"}
"""Families whose trial forward routes rows by their values, which no model without memory has."""

DEFAULTED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("sliding_window", "use_sliding_window", "max_window_layers"),
    *("attention_bias", "attention_out_bias", "mlp_bias", "qkv_bias", "use_bias"),
    *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_shared_experts"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step", "first_k_dense_replace"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)
"""Entries of a configuration that a plan reads."""

SMALL = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 320,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALL_HEADS = {"num_key_value_heads": 8}
DENSE_HEADS = {"deepseek_v3", "gpt_neox"}
"""Families without groups of query heads."""


def planned(name: str) -> PlannedModel:
    shape = model_shape(name)
    return PlannedModel(shape, format_of(shape, None if shape.file_bytes else "bfloat16", "--target-dtype"))


def without_memory(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention.NAME).eval()


def attention_layers(model: Any) -> list[LayerShape]:
    """Return the layers that the engine's own probe finds in a model on the meta device."""
    probe = attention.ShapeProbe()
    ids, rows = torch.zeros(1, 8, dtype=torch.int64, device="meta"), torch.arange(8, device="meta")
    with pytest.MonkeyPatch.context() as patch:  # otherwise transformers looks at the values of positions
        patch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda position_ids: None)
        model(input_ids=ids, position_ids=rows[None], use_cache=False, logits_to_keep=rows, plan=probe)
    return [probe.layers[index] for index in range(model.config.num_hidden_layers)]


def byte_count(model: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


@pytest.mark.parametrize("name", REAL)
def test_a_real_model_has_the_bytes_that_the_plan_says(name: str) -> None:
    entry = {key: value for key, value in known_models()[name]["config"].items() if key != "quantization_config"}
    config = AutoConfig.for_model(**entry, pad_token_id=0)
    model, plan = without_memory(config), planned(name)
    assert plan.weight_bytes == byte_count(model)
    assert plan.shape.weights.total == model.num_parameters()
    if plan.shape.family not in UNPROBED:
        assert plan.kv_bytes_per_token == bytes_per_page(attention_layers(model), 1, torch.bfloat16)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_family_is_counted_as_transformers_makes_it(family: str, tmp_path: Path) -> None:
    """Entries that the configuration leaves out have the family's own defaults."""
    changes = ALL_HEADS if family in DENSE_HEADS else {}
    config = AutoConfig.for_model(family, **SMALL | changes)
    config.save_pretrained(tmp_path)
    model, plan = without_memory(config), planned(str(tmp_path))
    assert plan.shape.weights.total == model.num_parameters()
    assert plan.shape.source == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("llama-3.1-70b", 4), ("llama-3.1-8b", 8), ("qwen2.5-7b", 2), ("gemma-2-9b", 2), ("qwen3-8b", 4)],
)
def test_a_rank_has_the_bytes_that_the_engine_gives_it(name: str, ranks: int) -> None:
    model = without_memory(AutoConfig.for_model(**known_models()[name]["config"], pad_token_id=0))
    divide(model, ranks)
    model.tie_weights()
    assert planned(name).rank_bytes(ranks) == pytest.approx(byte_count(model), rel=0.001)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_a_decoder_of_another_model_leaves_out_is_what_transformers_takes(family: str) -> None:
    content = tomllib.loads(Path(families.__file__).with_name("defaults.toml").read_text())
    usual = AutoConfig.for_model(family).to_dict()
    assert content[family] == {key: usual[key] for key in DEFAULTED if usual.get(key) is not None}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_engine_divides_the_families_that_the_plan_says(family: str) -> None:
    model = without_memory(AutoConfig.for_model(family, **SMALL | ({} if family not in DENSE_HEADS else ALL_HEADS)))
    if FAMILIES[family].is_divided:
        divide(model, 2)
    else:
        with pytest.raises(UnsupportedModelError, match="--tensor-parallel-size 1"):
            divide(model, 2)


@pytest.mark.parametrize("family", sorted(set(tiny_models.FAMILIES) & set(FAMILIES)))
def test_kv_bytes_are_those_that_the_engine_reserves(family: str, tmp_path: Path) -> None:
    tiny_models.build(family).to(torch.bfloat16).save_pretrained(tmp_path)
    backend = PlannedBackend(TransformersModel.load(str(tmp_path), device="cpu", dtype="bfloat16"))
    reserved = backend.reserve(0.5)
    page_bytes = planned(str(tmp_path)).kv_bytes_per_token * reserved.page_size
    assert reserved.byte_count == (reserved.page_count + 1) * page_bytes  # with the padding page
    assert reserved.page_count == 0.5 * MIB // page_bytes


@pytest.mark.parametrize("weights", ["BF16", "Q8_0"])
def test_a_gguf_file_is_planned_by_its_header(weights: str, tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "model.gguf", "llama", weights, shape=gguf_models.SMALL)
    tensors = gguf.GGUFReader(path).tensors
    plan = planned(str(path))
    assert plan.weight_bytes == pytest.approx(sum(int(tensor.n_bytes) for tensor in tensors), rel=0.001)
    assert plan.shape.weights.total == sum(int(tensor.n_elements) for tensor in tensors)
    shape = gguf_models.SMALL
    assert plan.kv_bytes_per_token == gguf_models.LAYERS * shape.kv_heads * 2 * shape.head_size * 2
