"""A head's config.json is followed, or refused by the name of a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.eagle3_config import TargetShape, default_layer_ids, is_eagle3, read_eagle3_config
from slipstream.engine.heads.eagle3_tensors import check_tensors, newer_name, target_ids, weight_shapes
from tests.eagle3_heads import HIDDEN, SHAPE, VOCABULARY, config_values


def older_values() -> dict[str, Any]:
    """Return a config.json of the releases before ``speculators``."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": 40,
        "max_position_embeddings": 2048,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "torch_dtype": "float16",
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "use_aux_hidden_state": True},
    }


def test_the_speculators_layout_is_read() -> None:
    config = read_eagle3_config(config_values(), SHAPE)
    assert (config.hidden_size, config.target_hidden_size, config.head_size) == (HIDDEN, HIDDEN, 16)
    assert (config.vocabulary_size, config.draft_vocabulary_size) == (VOCABULARY, 40)
    assert config.layer_ids == (1, 3, 4)
    assert config.norm_before_residual
    assert not config.has_head_norms


def test_the_older_layout_is_read() -> None:
    config = read_eagle3_config(older_values(), SHAPE)
    assert config.layer_ids == (2, 3, 4)
    assert config.head_size == HIDDEN // 4
    assert config.rotary == {"rope_theta": 500000.0, "rope_type": "default"}
    assert not config.norm_before_residual


def test_layers_that_are_not_named_are_those_of_the_paper() -> None:
    config = read_eagle3_config(
        config_values(eagle_aux_hidden_state_layer_ids=None), TargetShape(32, HIDDEN, VOCABULARY)
    )
    assert config.layer_ids == default_layer_ids(32) == (2, 16, 29)


def test_layers_are_read_in_the_targets_order() -> None:
    assert read_eagle3_config(config_values(eagle_aux_hidden_state_layer_ids=[4, 1, 3]), SHAPE).layer_ids == (1, 3, 4)


def test_a_head_is_known_by_its_config() -> None:
    assert is_eagle3(config_values())
    assert is_eagle3(older_values())
    assert not is_eagle3({"architectures": ["LlamaForCausalLM"]})
    assert not is_eagle3({"speculators_model_type": "dflash", "architectures": None})


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("norm_before_residual", {"norm_before_residual": None}),
    ("norm_before_residual", {"norm_before_residual": "yes"}),
    ("vocab_size", {"layer": {"vocab_size": 65}}),
    ("draft_vocab_size", {"draft_vocab_size": 65}),
    ("draft_vocab_size", {"draft_vocab_size": 0}),
    ("draft_vocab_size", {"draft_vocab_size": True}),
    ("target_hidden_size", {"target_hidden_size": 48}),
    ("eagle_aux_hidden_state_layer_ids", {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}),
    ("eagle_aux_hidden_state_layer_ids", {"eagle_aux_hidden_state_layer_ids": [1, 1, 3]}),
    ("eagle_aux_hidden_state_layer_ids", {"eagle_aux_hidden_state_layer_ids": []}),
    ("eagle_aux_hidden_state_layer_ids", {"eagle_aux_hidden_state_layer_ids": "2"}),
    ("fc_norm", {"fc_norm": True, "norm_before_fc": True}),
    ("transformer_layer_config", {"transformer_layer_config": None}),
    ("model_type", {"layer": {"model_type": "gemma3"}}),
    ("num_hidden_layers", {"layer": {"num_hidden_layers": 2}}),
    ("hidden_act", {"layer": {"hidden_act": "gelu"}}),
    ("attention_bias", {"layer": {"attention_bias": True}}),
    ("layer_types", {"layer": {"layer_types": ["sliding_attention"]}}),
    ("rope_type", {"layer": {"rope_parameters": {"rope_type": "longrope"}}}),
    ("rope_theta", {"layer": {"rope_parameters": {"rope_theta": -1.0}}}),
    ("rope_parameters", {"layer": {"rope_parameters": "default"}}),
    ("num_key_value_heads", {"layer": {"num_key_value_heads": 3}}),
    ("head_dim", {"layer": {"head_dim": 15}}),
    ("rms_norm_eps", {"layer": {"rms_norm_eps": 0}}),
    ("hidden_size", {"layer": {"hidden_size": 10**12}}),
    ("parallel_drafting", {"parallel_drafting": True}),
    ("score_bias", {"score_bias": 2.0}),
    ("gate_scale", {"layer": {"gate_scale": 2.0}}),
]


@pytest.mark.parametrize(("key", "changes"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_cannot_be_followed_is_refused_by_name(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        read_eagle3_config(config_values(**changes), SHAPE)


def test_names_of_older_releases_are_those_of_today() -> None:
    assert newer_name("midlayer.mlp.up_proj.weight") == "layers.0.mlp.up_proj.weight"
    assert newer_name("model.fc.weight") == newer_name("fc.weight") == "fc.weight"


def test_tensors_are_checked_by_name_and_shape() -> None:
    config = read_eagle3_config(config_values(), SHAPE)
    found: dict[str, tuple[int, ...]] = weight_shapes(config) | {"d2t": (40,)}
    embedding = VOCABULARY, HIDDEN
    check_tensors(config, found, target_embedding=embedding)
    check_tensors(config, found | {"embed_tokens.weight": embedding, "t2d": (64,)}, target_embedding=())
    faults = [
        ("embed_tokens.weight", found, (VOCABULARY, 48)),
        ("embed_tokens.weight", found, ()),
        ("lacks d2t", {name: shape for name, shape in found.items() if name != "d2t"}, embedding),
        ("lacks fc.weight", {name: shape for name, shape in found.items() if name != "fc.weight"}, embedding),
        ("norm.weight is", found | {"norm.weight": (3,)}, embedding),
        ("mask_hidden", found | {"mask_hidden": (1, 96)}, embedding),
    ]
    for fault, shapes, target in faults:
        with pytest.raises(UnsupportedModelError, match=fault):
            check_tensors(config, shapes, target_embedding=target)


def test_offsets_name_different_tokens_of_the_target() -> None:
    config = read_eagle3_config(config_values(), SHAPE)
    offsets = np.zeros(40, np.int64)
    offsets[-1] = 24
    assert target_ids(offsets, config)[[0, 38, 39]].tolist() == [0, 38, 63]
    for place, offset in ((39, 25), (0, -1), (0, 1)):
        faulty = offsets.copy()
        faulty[place] = offset
        with pytest.raises(UnsupportedModelError, match="d2t"):
            target_ids(faulty, config)
