"""The model with a real model's vocabulary says what the small one says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.wide_vocabulary import build, direction_of, states_of
from slipstream.hosting.tokenizer_files import embedded_directory


def test_a_direction_has_all_states_on_its_side_however_they_lean() -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(2000, 24, generator=generator)
    states[:, 3] = states[:, 3].abs() + 0.4  # hardly to be seen in their mean
    states[:, 5] += 4.0
    assert float((states @ direction_of(states)).min()) > 0


def test_states_all_around_have_no_direction() -> None:
    with pytest.raises(ValueError, match="no direction"):
        direction_of(torch.cat((torch.eye(3), -torch.eye(3))))


def test_added_rows_never_win_and_the_others_are_what_they_were(tmp_path: Path) -> None:
    below = build(tmp_path, rows=4096 + 64, dialogue_count=12)
    assert below >= 40
    wide, own = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        for directory in (tmp_path, embedded_directory("target"))
    )
    states, largest = states_of(own, AutoTokenizer.from_pretrained(tmp_path), dialogue_count=12)
    with torch.inference_mode():
        logits, small = wide.lm_head(states), own.lm_head(states)
    assert torch.equal(logits[:, :4096], small) and torch.equal(small.amax(dim=-1), largest)
    assert float((largest - logits[:, 4096:].amax(dim=-1)).min()) > 39
    ids = torch.arange(3, 60).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(wide.model(ids).last_hidden_state, own.model(ids).last_hidden_state)
