"""A model that cannot be served ends the process that was to serve it, and the user who started it
reads why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tiny_models

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}
WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_models.save(tiny_models.build("llama"), tmp_path / "model")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=100, env=OFFLINE, input=""
    )
    assert "Traceback" not in ended.stderr
    return ended


def without_a_tensor(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors[WEIGHT]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def with_a_nan(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors[WEIGHT][0, 0] = torch.nan
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def quantised(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))


def cut_short(directory: Path) -> None:
    with (directory / "model.safetensors").open("r+b") as weights:
        weights.truncate(5000)


FAULTS: dict[Callable[[Path], None], str] = {
    without_a_tensor: f"{{}} lacks 1 of LlamaForCausalLM's tensors: {WEIGHT}; ",
    with_a_nan: f"{{}} has weights that are NaN or infinite, in {WEIGHT}; ",
    quantised: "{} is quantised (gptq), which no target is served with: ",
    cut_short: "model.safetensors of {} is truncated or not a safetensors file (",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_service_ends_with_the_reason_in_one_line(fault: Callable[[Path], None], checkpoint: Path) -> None:
    fault(checkpoint)
    ended = run("verifier_service", "--model", str(checkpoint), "--address", "127.0.0.1:0")
    assert ended.returncode == 1
    *logged, reason = ended.stderr.splitlines()
    assert reason.startswith("verifier: " + FAULTS[fault].format(checkpoint))
    assert all(" verifier INFO " in line for line in logged)


def test_serve_and_chat_show_the_reason_that_the_service_gave(checkpoint: Path) -> None:
    with_a_nan(checkpoint)
    reason = FAULTS[with_a_nan].format(checkpoint)
    for command in (["serve", "--no-http"], ["chat", "--local"]):
        ended = run("slipstream.cli", *command, "--target", "arithmetic:", "--draft", str(checkpoint))
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1].startswith(f"slipstream: draft: {reason}")
