"""Drafts with quantised weights, by transformers' own quantisers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from draft_service.settings import DraftSettings
from slipstream.engine.engine import Append, Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.pretrained import quantisation
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.hosting.backends import backend_of
from slipstream.hosting.tokenizer_files import load_tokenizer_files
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from verifier_service.settings import VerifierSettings

TEXT = [*range(100, 124)]


def settings(model: Path, **given: Any) -> DraftSettings:
    return DraftSettings(_cli_parse_args=[], model=str(model), kv_memory_mib=8, threads=1, **given)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.build("llama"), tmp_path_factory.mktemp("plain"))


def with_config(plain: Path, to: Path, config: Any) -> Path:
    """Let transformers quantise a model, and save it."""
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, device_map={"": "cpu"})
    model.save_pretrained(to)
    for file in plain.glob("tokenizer*"):
        (to / file.name).write_bytes(file.read_bytes())
    return to


def by_torchao(plain: Path, to: Path) -> Path:
    torchao = pytest.importorskip("torchao.quantization")
    return with_config(plain, to, TorchAoConfig(torchao.Int8WeightOnlyConfig()))


def by_bitsandbytes(plain: Path, to: Path) -> Path:
    pytest.importorskip("bitsandbytes")
    return with_config(plain, to, BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"))


def by_compressed_tensors(plain: Path, to: Path) -> Path:
    """Write what compressed-tensors stores of weights of eight bits, a scale for each output."""
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    for file in plain.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    tensors = load_file(to / "model.safetensors")
    for key in [key for key in tensors if key.endswith("_proj.weight")]:
        weight = tensors.pop(key).float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        tensors[f"{key}_packed"] = helpers.pack_to_int32((weight / scale).round().to(torch.int8), 8)
        tensors[f"{key}_scale"] = scale.to(torch.bfloat16)
        tensors[f"{key}_shape"] = torch.tensor(weight.shape)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    group = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = json.loads((to / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": group,
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    (to / "config.json").write_text(json.dumps(config))
    return to


def guesses(backend: Any) -> list[int]:
    """Return a draft's choices after each token of a text, one token at a time."""
    engine, sequence, chosen = Engine(backend, kv_memory_mib=8), Sequence("draft"), []
    for token in TEXT:
        engine.cache.extend(sequence, [token])
        (answer,) = engine.step([Append(sequence, 1, 1, SamplingRule(), drafting=True)])
        chosen.append(answer.choices[0].token)
    return chosen


Make = Callable[[Path, Path], Path]


@pytest.mark.parametrize("make", [by_torchao, by_bitsandbytes, by_compressed_tensors])
def test_a_quantised_checkpoint_is_served_as_a_draft_and_not_as_a_target(
    make: Make, plain: Path, tmp_path: Path
) -> None:
    directory = make(plain, tmp_path)
    load_tokenizer_files(str(directory), quantised=True)
    backend = backend_of(settings(directory), str(directory), exact=False)
    assert isinstance(backend, PlannedBackend)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, device_map={"": "cpu"}).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([TEXT])).logits[0].float()
    chosen = guesses(backend)
    # A kernel may round rows differently alone and together, and near ties fall either way.
    gaps = logits.amax(1) - logits[range(len(TEXT)), chosen]
    assert np.quantile(gaps.numpy(), 0.8) < 0.05
    with pytest.raises(UnsupportedModelError, match=r"is quantised \([a-z-]+\), which no target is served with"):
        backend_of(VerifierSettings(_cli_parse_args=[], model=str(directory)), str(directory), exact=True)


def test_plain_weights_are_quantised_while_they_are_loaded(plain: Path) -> None:
    pytest.importorskip("torchao")
    backend = backend_of(settings(plain, quantize="int8"), str(plain), exact=False)
    assert isinstance(backend, PlannedBackend)
    same = backend_of(settings(plain, engine="torch"), str(plain), exact=False)
    assert backend.model.weights_fingerprint != same.model.weights_fingerprint
    agreeing = [one == other for one, other in zip(guesses(backend), guesses(same), strict=True)]
    assert sum(agreeing) > len(TEXT) / 2


def test_missing_packages_are_named_with_the_command(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda package: None)
    with pytest.raises(
        UnsupportedModelError, match=r"needs accelerate and torchao: pip install 'slipstream-llm\[quant"
    ):
        backend_of(settings(plain, quantize="int8"), str(plain), exact=False)
    with pytest.raises(UnsupportedModelError, match="needs accelerate and gptqmodel: pip install accelerate gptqmodel"):
        quantisation.Quantisation("awq").refuse("it", "cpu")


@pytest.mark.parametrize(
    ("given", "config", "fault"),
    [
        ({"quantize": "int4"}, None, "--quantize int4 needs a CUDA device, and --device is 'cpu': give int8"),
        ({"quantize": "int8", "tensor_parallel_size": 2}, None, "--quantize int8 is for a checkpoint on one rank"),
        ({"quantize": "int8", "engine": "compiled"}, None, "cannot be computed by --engine compiled: its weights are"),
        ({"quantize": "int8"}, {"quant_method": "awq"}, r"is quantised already \(awq\): leave out --quantize int8"),
        ({}, {"quant_method": "mxfp4"}, r"is quantised \(mxfp4\), which not even a draft is served with: give one of"),
        ({}, {"bits": 3}, r"is quantised \(by a method it does not name\), which not even a draft"),
    ],
)
def test_what_cannot_be_quantised_is_refused_with_the_reason(
    given: dict[str, Any], config: Any, fault: str, plain: Path, tmp_path: Path
) -> None:
    for file in plain.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    if config is not None:
        said = json.loads((plain / "config.json").read_text()) | {"quantization_config": config}
        (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(UnsupportedModelError, match=fault):
        backend_of(settings(tmp_path, **given), str(tmp_path), exact=False)


@pytest.mark.parametrize("name", ["arithmetic:ends=0", "some.gguf"])
def test_only_checkpoints_are_quantised_at_load(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="--quantize int8 is for a checkpoint on one rank, not for"):
        backend_of(settings(Path(name), quantize="int8"), name, exact=False)


def test_an_old_description_beside_the_one_in_config_json_is_no_obstacle(plain: Path, tmp_path: Path) -> None:
    for file in plain.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "quantize_config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match=r"has quantize_config\.json and so weights that are quantised"):
        load_tokenizer_files(str(tmp_path), quantised=True)
    said = json.loads((plain / "config.json").read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    load_tokenizer_files(str(tmp_path), quantised=True)
