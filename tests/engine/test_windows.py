"""Sliding windows are those of the masks that transformers makes, against all else that a config or
a layer says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from slipstream.engine import compiled_from_transformers
from slipstream.engine.compiled.decoder import NotCompiledError
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.compiled_from_transformers import compare_positions, load_compiled_by_transformers, shape_of
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Segment
from slipstream.engine.torch.plan import TIGHT
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from tests import tiny_models
from tests.tensors import forward

WINDOW = 8
TOKENS = [7 + index * 13 % 4000 for index in range(60)]
PAGES = range(1, 9)
_MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SOME_LAYERS = {"use_sliding_window": True, "max_window_layers": 1}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, which has none": ("llama", {}),
    "mistral": ("mistral", {}),
    "mixtral": ("mixtral", {}),
    "qwen2 without": ("qwen2", {}),
    "qwen2 in some layers": ("qwen2", _SOME_LAYERS),
    "qwen2 by layer types": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen3 in some layers": ("qwen3", _SOME_LAYERS),
    "qwen2_moe without": ("qwen2_moe", {}),
    "qwen2_moe in some layers": ("qwen2_moe", _SOME_LAYERS),
    "qwen3_moe": ("qwen3_moe", {"use_sliding_window": True}),
    "phi3": ("phi3", {}),
    "phimoe": ("phimoe", tiny_models.SHAPE | _MIXTURE),
    "gemma2": ("gemma2", {}),
    "gemma3_text": ("gemma3_text", {}),
    "starcoder2": ("starcoder2", tiny_models.SHAPE),
    "ministral": ("ministral", tiny_models.SHAPE | {"head_dim": 16}),
    "olmo3": ("olmo3", tiny_models.SHAPE),
    "gpt_oss": ("gpt_oss", {}),
    "llama4_text": ("llama4_text", {"attention_chunk_size": WINDOW}),
    "llama4_text, whose context is one chunk": ("llama4_text", {"max_position_embeddings": WINDOW * 8}),
    "llama4_text, whose last chunk is one token": (
        "llama4_text",
        {"attention_chunk_size": WINDOW, "max_position_embeddings": WINDOW * 8 + 1},
    ),
}
COMPILED = [name for name, (family, _) in CASES.items() if family in {"llama", "mistral", "qwen2", "qwen3"}]


def built(case: str, window: int = WINDOW, **more: Any) -> PreTrainedModel:
    family, changes = CASES[case]
    head_size = {"head_dim": 32} if case in COMPILED else {}
    model = tiny_models.build(family, **{**changes, **more}, **head_size, sliding_window=window)
    model.set_attn_implementation("eager")
    return model


@torch.inference_mode()
def said_by(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    return logits


def distance(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("case", CASES)
def test_torch_sees_what_transformers_own_mask_shows(case: str, tmp_path: Path) -> None:
    model = built(case)
    tiny_models.save(model, tmp_path)
    backend = PlannedBackend(
        TransformersModel.load(str(tmp_path), device="cpu", dtype="float32"), page_size=16, padding=TIGHT
    )
    backend.reserve(4)
    assert distance(forward(backend, [Segment(TOKENS, 0, PAGES, len(TOKENS))]), said_by(model)) < 1e-5


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_code_sees_what_transformers_own_mask_shows(case: str, tmp_path: Path) -> None:
    model = built(case)
    tiny_models.save(model, tmp_path)
    backend = load_compiled_checkpoint(str(tmp_path), dtype="float32", page_size=16, single_rows=False, threads=1)
    backend.reserve(4)
    assert distance(forward(backend, [Segment(TOKENS, 0, PAGES, len(TOKENS))]), said_by(model)) < 1e-5


@pytest.mark.parametrize("window", [63, 64, 4096])
@pytest.mark.parametrize("case", ["mistral", "qwen2 in some layers"])
def test_a_window_as_long_as_the_context_is_compiled(case: str, window: int, tmp_path: Path) -> None:
    """Mistral-7B-v0.1 and Qwen2 state such windows, which hide nothing."""
    model = built(case, window, max_position_embeddings=64)
    tiny_models.save(model, tmp_path)
    backend = load_compiled_checkpoint(str(tmp_path), dtype="float32", page_size=16, single_rows=False, threads=1)
    backend.reserve(4)
    assert distance(forward(backend, [Segment(TOKENS, 0, PAGES, len(TOKENS))]), said_by(model)) < 1e-5


@pytest.mark.parametrize("window", [1, 0, -3])
def test_a_window_in_which_transformers_contradicts_itself_is_refused(window: int, tmp_path: Path) -> None:
    """Of one token: its forward sees one, and the same text token by token sees all, for its cache
    keeps all but none."""
    tiny_models.save(built("mistral", window), tmp_path)
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        TransformersModel.load(str(tmp_path), device="cpu", dtype="float32")
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        load_compiled_checkpoint(str(tmp_path), dtype="float32", page_size=16, single_rows=False, threads=1)


def test_a_window_longer_than_a_trial_is_tried_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_models.save(built("mistral", 1000), tmp_path)
    load_compiled_by_transformers(str(tmp_path), dtype="float32", page_size=16, single_rows=False, threads=1)
    monkeypatch.setattr(compiled_from_transformers, "layer_windows", lambda *_: [0, 0])
    with pytest.raises(NotCompiledError, match="logits would be"):
        load_compiled_by_transformers(str(tmp_path), dtype="float32", page_size=16, single_rows=False, threads=1)


def test_positions_that_a_trial_does_not_reach_are_compared(tmp_path: Path) -> None:
    """Llama 3.1's frequencies have to hold to the end of the context, and not for a trial's tokens
    alone."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    model = tiny_models.build("llama", head_dim=32, rope_parameters=rope | {"original_max_position_embeddings": 256})
    tiny_models.save(model, tmp_path)
    backend = load_compiled_checkpoint(str(tmp_path), dtype="float32", page_size=16, single_rows=False, threads=1)
    shape = shape_of(model, [0, 0])
    assert np.array_equal(backend.model.frequencies, shape.frequencies)
    compare_positions(model, shape)
    slower = shape.frequencies.copy()
    slower[0] *= np.float32(1.000002)
    with pytest.raises(NotCompiledError, match="as at position"):
        compare_positions(model, replace(shape, frequencies=slower))
