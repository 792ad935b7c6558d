"""Two models that would answer differently have two fingerprints; how and by whom a checkpoint was
saved makes none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from slipstream.engine.arithmetic import ArithmeticModel, ArithmeticSettings
from slipstream.engine.pretrained.fingerprint import device_kind, weights_fingerprint
from slipstream.engine.torch.plan import BATCH_INVARIANT
from tests import tiny_models


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_models.save(tiny_models.build("mistral"), tmp_path / "model")


def of(directory: Path, dtype: torch.dtype = torch.float32) -> str:
    return weights_fingerprint(AutoModelForCausalLM.from_pretrained(directory, dtype=dtype), (2,))


def change(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}},
        {"rms_norm_eps": 1e-5},
        {"sliding_window": tiny_models.WINDOW * 2},
        {"sliding_window": None},
        {"hidden_act": "gelu"},
        {"a_switch_of_a_later_version": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_changes_a_logit_makes_another_fingerprint_with_the_same_weights(
    checkpoint: Path, changed: dict[str, Any]
) -> None:
    before = of(checkpoint)
    change(checkpoint, **changed)
    assert of(checkpoint) != before


def test_another_dtype_other_end_tokens_and_other_weights_are_another_model(checkpoint: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    other = tiny_models.save(tiny_models.build("mistral", seed=1), tmp_path / "other")
    assert len({of(checkpoint), of(checkpoint, torch.bfloat16), weights_fingerprint(model, (3,)), of(other)}) == 4


def test_a_checkpoint_that_another_version_saved_elsewhere_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    before = of(checkpoint)
    change(
        checkpoint,
        transformers_version="4.30.0",
        torch_dtype="float16",
        architectures=["MistralForCausalLM", "MistralModel"],
        use_cache=False,
        attention_dropout=0.1,
        initializer_range=0.5,
        pad_token_id=1,
        id2label={"0": "yes", "1": "no"},
    )
    config = json.loads((checkpoint / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= {"rope_theta": int(theta), "rope_scaling": None, "a_field_without_a_value": None}
    (checkpoint / "config.json").write_text(json.dumps(dict(reversed(config.items()))))
    assert of(checkpoint.rename(tmp_path / "copy")) == before


def test_a_device_of_another_kind_is_another_one(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(checkpoint)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "an older one")
    assert device_kind(torch.device("cpu")) == "cpu an older one"
    assert of(checkpoint) != before


def test_a_paper_model_is_told_by_what_changes_its_answers_alone() -> None:
    def named(name: str) -> str:
        return ArithmeticModel(ArithmeticSettings.parse(name)).weights_fingerprint

    plain = named("arithmetic:")
    changed = [named(f"arithmetic:{change}") for change in ("vocabulary=300", "agreement=0.5", "spread=0.7", "ends=0")]
    assert len({plain, *changed}) == 5
    assert named("arithmetic:forward_ms=5&row_us=7&context=100") == plain


def test_another_padding_is_marked() -> None:
    assert BATCH_INVARIANT.mark != replace(BATCH_INVARIANT, key_multiple=256).mark
    assert len(BATCH_INVARIANT.mark) == 4
