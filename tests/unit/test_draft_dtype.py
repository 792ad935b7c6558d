"""What a draft computes in where nothing is said: what a step of its size takes least in."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cli.local import PairSettings, draft_dtype_of


@pytest.mark.parametrize(("mebibytes", "device", "dtype"), [(3, "cpu", "float32"), (60, "cpu", "bfloat16")])
def test_a_small_draft_computes_in_float32_on_a_cpu(tmp_path: Path, mebibytes: int, device: str, dtype: str) -> None:
    for part in range(2):
        with (tmp_path / f"model-{part}.safetensors").open("wb") as file:
            file.truncate(mebibytes * 2**19)
    assert draft_dtype_of(PairSettings(draft=str(tmp_path), device=device)) == dtype


def test_the_embedded_one_is_small_and_one_that_is_not_here_is_taken_for_large() -> None:
    assert draft_dtype_of(PairSettings()) == "float32"
    assert draft_dtype_of(PairSettings(draft="somebody/some-model")) == "bfloat16"
    assert draft_dtype_of(PairSettings(device="cuda")) == "bfloat16"
