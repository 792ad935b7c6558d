"""A model that ranks cannot share is refused before a rank starts, by the flag that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from slipstream.engine.errors import UnsupportedModelError
from slipstream.given_settings import read_settings
from slipstream.hosting.ranks.sharding import refuse_unshared
from verifier_service.settings import VerifierSettings


def refuse(monkeypatch: pytest.MonkeyPatch, model: str, *flags: str) -> None:
    monkeypatch.setattr(sys, "argv", ["verifier", "--model", model, *flags])
    refuse_unshared(read_settings(VerifierSettings, "verifier"), model)


@pytest.mark.parametrize(
    ("model", "flags", "fault"),
    [
        ("arithmetic:ends=0", [], "--tensor-parallel-size 2 shares out checkpoints, and arithmetic:ends=0 is none"),
        ("models/big.gguf", [], "--tensor-parallel-size 2 shares out checkpoints, and models/big.gguf is none"),
        ("big", ["--engine", "compiled"], "--tensor-parallel-size 2 needs --engine torch, but --engine is compiled"),
        ("big", ["--engine", "llamacpp"], "--tensor-parallel-size 2 needs --engine torch, but --engine is llamacpp"),
        ("big", ["--device", "cuda:1"], "each rank takes a device of its own, and --device is 'cuda:1'"),
    ],
)
def test_what_ranks_cannot_share(monkeypatch: pytest.MonkeyPatch, model: str, flags: Sequence[str], fault: str) -> None:
    with pytest.raises(UnsupportedModelError, match=fault):
        refuse(monkeypatch, model, "--tensor-parallel-size", "2", *flags)


def test_one_rank_and_a_checkpoint_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "arithmetic:ends=0", "--engine", "compiled")
    refuse(monkeypatch, "big", "--tensor-parallel-size", "2", "--engine", "torch", "--device", "cuda")
