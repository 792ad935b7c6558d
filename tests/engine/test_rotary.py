"""Rotary positions that transformers chooses by the step: what is served of them depends on the
position alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.engine.engine import Engine
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Segment
from slipstream.engine.pretrained.rotary import steady_context_length
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from tests import tiny_models
from tests.tensors import tensor_of

ORIGINAL = 64
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": ORIGINAL,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LENGTH = 256
"""What the models say their context is."""

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "phi3 longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL}, ORIGINAL),
    "llama longrope": ("llama", {"rope_parameters": LONGROPE}, ORIGINAL),
    "llama dynamic": ("llama", {"rope_parameters": DYNAMIC}, LENGTH),
    "llama yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, LENGTH),
    "llama default": ("llama", {}, LENGTH),
}


def load(case: str, directory: Path) -> TransformersModel:
    family, changes, _ = CASES[case]
    built = tiny_models.build(family, **{"max_position_embeddings": LENGTH, **changes})
    return TransformersModel.load(str(tiny_models.save(built, directory)), device="cpu", dtype="float32")


class Stepper:
    def __init__(self, model: TransformersModel) -> None:
        self.engine = Engine(PlannedBackend(model), kv_memory_mib=8)

    def step(self, *parts: tuple[Sequence, list[int]]) -> list[torch.Tensor]:
        """Logits at each part's tokens, in one forward."""
        segments = []
        for sequence, tokens in parts:
            start = len(sequence)
            self.engine.cache.extend(sequence, tokens)
            segments.append(Segment(tokens, start, sequence.pages, len(tokens)))
        logits = tensor_of(self.engine.backend.forward(segments))
        return [part.clone() for part in logits.split([len(tokens) for _, tokens in parts])]


def texts(length: int) -> tuple[list[int], list[int]]:
    return [7 * i % 4000 for i in range(20)], [11 * i % 4000 for i in range(length)]


@pytest.mark.parametrize("case", CASES)
def test_the_longest_sequence_served_changes_no_bit_of_a_short_one_beside_it(case: str, tmp_path: Path) -> None:
    model = load(case, tmp_path)
    assert model.context_length == CASES[case][2]
    stepper = Stepper(model)
    short, long = texts(model.context_length)
    (alone,) = stepper.step((Sequence("alone"), short))
    beside, (in_one_step,) = (
        stepper.step((Sequence("short"), short), (Sequence("long"), long)),
        stepper.step((Sequence("later"), short)),
    )
    assert torch.equal(beside[0], alone) and torch.equal(in_one_step, alone)
    chunked = Sequence("chunked")
    parts = [stepper.step((chunked, long[start : start + 24]))[0] for start in range(0, len(long), 24)]
    assert torch.equal(torch.cat(parts), beside[1])


@pytest.mark.parametrize("case", ["llama longrope", "llama dynamic"])
def test_beyond_what_is_served_a_long_sequence_would_change_a_short_one(case: str, tmp_path: Path) -> None:
    """Else the comparison above would prove nothing."""
    stepper = Stepper(load(case, tmp_path))
    short, long = texts(CASES[case][2] + 8)
    (alone,) = stepper.step((Sequence("alone"), short))
    assert not torch.equal(stepper.step((Sequence("short"), short), (Sequence("long"), long))[0], alone)


def test_a_shorter_context_is_told_and_an_unknown_type_refused(caplog: pytest.LogCaptureFixture) -> None:
    config: Any = tiny_models.build("llama", rope_parameters=LONGROPE).config
    assert steady_context_length(config, LENGTH) == ORIGINAL
    assert "the context ends at 64 tokens, not 256" in caplog.text
    config.rope_parameters = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "newrope"}}
    with pytest.raises(UnsupportedModelError, match="type newrope"):
        steady_context_length(config, LENGTH)
