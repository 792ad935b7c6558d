"""A model of pickled weights, or with code of its own, is served where its flag says so and nowhere
else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from tests import tiny_models

OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class Config(LlamaConfig):
    model_type = "own"

class M(LlamaForCausalLM):
    config_class = Config
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path / "model")
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.M"}
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
    (directory / "own.py").write_text(OWN_CODE)
    return directory


def test_each_flag_lets_in_what_it_names_and_without_it_the_reason_names_the_flag(
    checkpoint: Path, tmp_path: Path
) -> None:
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    for flags, missing in (
        ([], "--trust-remote-code"),
        (["--allow-pickle"], "--trust-remote-code"),
        (["--trust-remote-code"], "--allow-pickle"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "draft_service", "--model", checkpoint, "--address", "127.0.0.1:0", *flags],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, **environment},
        )
        assert ended.returncode == 1
        reason = ended.stderr.splitlines()[-1]
        assert reason.startswith(f"draft: {checkpoint} ")
        assert missing in reason
    flags = ["--model", str(checkpoint), "--allow-pickle", "--trust-remote-code", "--kv-memory-mib", "1"]
    service = Service("draft", "draft_service", free_address(), flags, environment)
    try:
        service.wait_until_healthy(100)
        assert "loaded M in" in service.log.read_text()
    finally:
        service.stop()
