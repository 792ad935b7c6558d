"""A key of a config.json that changes numbers is followed, refused, or named in a warning at start:
never ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from slipstream.engine.checkpoint import UNREAD_FILES
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Backend, Segment
from slipstream.engine.pretrained.config_keys import unread_keys
from slipstream.engine.torch.plan import TIGHT
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from tests import tiny_models
from tests.tensors import forward

TOKENS = [7 + index * 13 % 4000 for index in range(60)]
PAGES = range(1, 9)
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
_THETA = {"rope_theta": 10000.0}

FOLLOWED: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {"rms_norm_eps": 0.1},
    "rope_theta": {"rope_theta": 500.0, "rope_parameters": None},
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **_THETA}},
    "rope_scaling": {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}, **_THETA},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            **_THETA,
        }
    },
    "dynamic": {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, **_THETA}},
    "tie_word_embeddings": {"tie_word_embeddings": True},
    "max_position_embeddings": {"max_position_embeddings": 64},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "sliding_window": {"sliding_window": 5},
    "use_sliding_window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "layer_types": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "hidden_act": {"hidden_act": "gelu"},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
    "pretraining_tp": {"pretraining_tp": 2},
    "attention_dropout": {"attention_dropout": 0.5},
    "chunk_size_feed_forward": {"chunk_size_feed_forward": 4},
    "is_causal": {"is_causal": False},
    "per_layer_config": {"per_layer_config": {"1": {"rms_norm_eps": 0.1}}},
    "output_attentions": {"output_attentions": True},
}
"""Changes to a family's config.json; where a class does not know a key, transformers ignores it,
and so is it here."""


COMPILED, TORCH, NO_ENGINE = "compiled", "torch", "none"
REFUSED: dict[tuple[str, str], str] = {
    ("layer_types", "mistral"): TORCH,  # transformers takes Ministral's class
    **{("hidden_act", family): TORCH for family in FAMILIES},
    **{("is_causal", family): NO_ENGINE for family in FAMILIES},
    **{("per_layer_config", family): NO_ENGINE for family in FAMILIES},
}
"""Which engine serves a case and family that the compiled one refuses. It serves all others."""


def saved(directory: Path, family: str, changes: dict[str, Any]) -> Path:
    """A model with those keys in its file, as its maker would have saved it: what they have it hold
    it holds."""
    known = {
        key: value for key, value in changes.items() if key in ("tie_word_embeddings", "attention_bias", "mlp_bias")
    }
    tiny_models.save(tiny_models.build(family, head_dim=32, **known), directory)
    change(directory, **changes)
    return directory


def change(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@torch.inference_mode()
def said_by_transformers(directory: Path) -> torch.Tensor:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    logits: torch.Tensor = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    return logits


def by_torch(directory: Path) -> Backend:
    model = TransformersModel.load(str(directory), device="cpu", dtype="float32")
    return PlannedBackend(model, page_size=16, padding=TIGHT)


def by_compiled_code(directory: Path) -> Backend:
    return load_compiled_checkpoint(str(directory), dtype="float32", page_size=16, single_rows=False, threads=1)


def distance(backend: Backend, expected: torch.Tensor) -> float:
    backend.reserve(4)
    logits = forward(backend, [Segment(TOKENS, 0, PAGES, len(TOKENS))])
    assert isinstance(logits, torch.Tensor)
    return float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", FOLLOWED)
def test_a_key_gives_transformers_own_numbers_or_is_refused(case: str, family: str, tmp_path: Path) -> None:
    directory = saved(tmp_path, family, FOLLOWED[case])
    served_by = REFUSED.get((case, family), COMPILED)
    if served_by != COMPILED:
        with pytest.raises(NotCompiledError if served_by == TORCH else UnsupportedModelError):
            by_compiled_code(directory)
    if served_by == NO_ENGINE:
        with pytest.raises(UnsupportedModelError):
            by_torch(directory)
        return
    backend = by_compiled_code(directory) if served_by == COMPILED else by_torch(directory)
    assert distance(backend, said_by_transformers(directory)) < 1e-5


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"sliding_window": 5}),
        ("llama", {"attn_logit_softcapping": 30.0}),
        ("llama", {"final_logit_softcapping": 30.0}),
        ("llama", {"logits_scaling": 8.0, "residual_multiplier": 0.2}),
        ("llama", {"embedding_multiplier": 12.0}),
        ("llama", {"attention_multiplier": 0.1}),
        ("llama", {"use_qk_norm": True}),
        ("llama", {"temperature": 0.7, "max_length": 4096, "suppress_tokens": [5]}),
        ("mistral", {"attention_bias": True}),
        ("qwen2", {"attention_bias": False}),
        ("gpt2", {"sliding_window": 5}),
    ],
)
def test_keys_that_transformers_does_not_read_are_named_in_one_line(
    family: str, changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save(tiny_models.build(family), tmp_path)
    change(tmp_path, **changes)
    by_torch(tmp_path)
    (line,) = [record.message for record in caplog.records if record.name.startswith("slipstream")]
    assert line == (
        f"config.json of {tmp_path} has keys that transformers' {family_class(family)} does not read, "
        f"and neither does this service: {', '.join(sorted(changes))}"
    )


_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
_GPTJ = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}
_QUIET: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("qwen2", {"use_mrope": False}, {"use_mrope": True}),
    ("qwen2", {"use_sliding_window": False, "max_window_layers": 28}, {}),
    ("llama", {"rope_interleaved": False, "is_llama_config": True}, {"rope_interleaved": True}),
    ("llama", {"activation": "swiglu"}, {"activation": "relu2"}),
    ("llama", {"hidden_activation": "silu"}, {"hidden_activation": "gelu"}),
    ("llama", {"use_sliding_window": False, "use_mup": False}, {"use_qk_norm": False, "use_rope": False}),
    ("llama", {"num_experts_per_token": None}, {"experts_per_token": 2}),
    ("cohere", {}, {"rope_interleaved": False}),
    ("mistral", {"attention_bias": False, "mlp_bias": False}, {"use_sliding_window": False, "mlp_bias": True}),
    ("smollm3", {"max_window_layers": 28, "use_sliding_window": False}, {}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, {"max_window_layers": 28}),
    ("qwen3_moe", _MOE | {"max_window_layers": 48, "use_sliding_window": False}, {}),
    ("qwen3_moe", _MOE | {"use_sliding_window": True, "sliding_window": 8}, {"max_window_layers": 48}),
    ("phi3", {"auto_map": {"AutoConfig": "a.B"}, "attention_bias": False}, {"attention_bias": True}),
    ("phi3", {"lm_head_bias": False, "mlp_bias": False}, {"lm_head_bias": True}),
    ("phi3", {"full_attn_mod": 1, "interpolate_factor": 1}, {}),
    ("phi3", {}, {"full_attn_mod": 2, "interpolate_factor": 4}),
    ("gemma2", {"hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 4096, "sliding_window": 4096}, {}),
    ("gemma2", {"sliding_window": 4096}, {"hidden_act": "gelu", "sliding_window_size": 1024}),
    ("gemma3_text", {"hidden_act": "gelu_pytorch_tanh"}, {"hidden_act": "gelu"}),
    (
        "deepseek_v2",
        _DEEPSEEK | {"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True},
        {"scoring_func": "sigmoid"},
    ),
    ("deepseek_v2", _DEEPSEEK | {"scoring_func": "softmax", "topk_method": "greedy"}, {"moe_layer_freq": 2}),
    (
        "deepseek_v3",
        _DEEPSEEK | {"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True},
        {"scoring_func": "softmax", "topk_method": "greedy"},
    ),
    ("deepseek_v3", _DEEPSEEK | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, {}),
    (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_per_token": 2, "rope_parameters": _YARN}
        | {"initial_context_length": 64},
        {},
    ),
    (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _YARN},
        {"experts_per_token": 4, "initial_context_length": 128},
    ),
    ("gpt_neox", {"attention_dropout_prob": 0.1, "hidden_dropout_prob": 0.1}, {"norm_eps": 0.1}),
    (
        "stablelm",
        {"norm_eps": 1e-5, "layer_norm_eps": 1e-5, "rope_pct": 0.25, "partial_rotary_factor": 0.25},
        {"mlp_bias": True},
    ),
    ("stablelm", {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}, {"norm_eps": 1e-6, "rope_pct": 0.5}),
    ("starcoder2", {"mlp_type": "default", "norm_type": "layer_norm", "attention_bias": True}, {"mlp_bias": True}),
    ("starcoder2", {"scale_attn_weights": True, "norm_epsilon": 1e-5, "layer_norm_epsilon": 1e-5}, {}),
    ("starcoder2", {"use_bias": False}, {"attention_bias": True, "mlp_type": "gated", "norm_type": "rms_norm"}),
    ("gptj", _GPTJ | {"rotary": True, "scale_attn_weights": True}, {}),
    ("gptj", _GPTJ, {"rotary": False, "scale_attn_weights": False}),
    ("olmo", {"weight_tying": False, "tie_word_embeddings": False}, {}),
    ("olmo", {"tie_word_embeddings": True}, {"weight_tying": False}),
    ("cohere", {"model_max_length": 2048}, {}),
    ("cohere", {}, {"model_max_length": 8192}),
    ("stablelm", {"use_qkv_bias": True}, {"mlp_bias": True, "attention_bias": False}),
]
"""Model type, keys that need no word, and keys that would change numbers if the class read them."""


@pytest.mark.parametrize(("kind", "neutral", "named"), _QUIET)
def test_a_key_that_says_what_the_class_computes_needs_no_word(
    kind: str, neutral: dict[str, Any], named: dict[str, Any]
) -> None:
    with torch.device("meta"):
        family = tiny_models.FAMILIES.get(kind, tiny_models.SHAPE)
        model = tiny_models.build(kind, **{**family, **neutral, **named})
    assert unread_keys(neutral | named, model) == sorted(named)


def family_class(family: str) -> str:
    return {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}.get(
        family, "GPT2LMHeadModel"
    )


@pytest.mark.parametrize("family", sorted(tiny_models.FAMILIES))
def test_what_transformers_itself_saves_needs_no_word(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save(tiny_models.build(family), tmp_path)
    change(tmp_path, torch_dtype="bfloat16", _name_or_path="x", use_cache=True, pretraining_tp=1)
    by_torch(tmp_path)
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


def test_a_class_that_is_not_the_one_it_was_saved_from_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save(tiny_models.build("llama"), tmp_path)
    change(tmp_path, architectures=["MistralForCausalLM"])
    by_torch(tmp_path)
    assert "names MistralForCausalLM, but its model_type 'llama' stands for LlamaForCausalLM" in caplog.text


@pytest.mark.parametrize("file", UNREAD_FILES)
def test_a_file_beside_the_weights_that_makes_another_model_of_them_is_refused(file: str, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.build("llama", head_dim=32), tmp_path)
    (tmp_path / file).write_text("{}")
    for load in (by_torch, by_compiled_code):
        with pytest.raises(UnsupportedModelError, match=file.replace(".", r"\.")):
            load(tmp_path)


def test_an_adapter_without_its_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(UnsupportedModelError, match=r"adapter_config\.json"):
        by_torch(tmp_path)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv", "qweight", "weight.absmax", "input_scale"])
def test_tensors_that_weights_would_have_to_be_scaled_by_are_refused(name: str, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.build("llama"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"model.layers.0.mlp.up_proj.{name}"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=f"up_proj.{name}"):
        by_torch(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_weights_of_a_type_that_needs_scales_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.build("llama"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=name):
        by_torch(tmp_path)
