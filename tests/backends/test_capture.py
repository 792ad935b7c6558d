"""A captured forward gives the modules' own bits or is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from slipstream.engine.engine import Append, Engine
from slipstream.engine.model import Segment
from slipstream.engine.sequence import Sequence
from slipstream.engine.torch.capture import CapturedForward
from slipstream.engine.torch.plan import BATCH_INVARIANT, TIGHT, Padding, StepPlan, build_plan
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models


def plan(*tokens: int) -> StepPlan:
    return build_plan([Segment(list(tokens), 3, [1], 1)], 16, torch.device("cpu"), TIGHT)


class Counting:
    """A forward that counts how often it really runs."""

    def __init__(self, forward: Callable[[StepPlan], torch.Tensor]) -> None:
        self.count = 0
        self._forward = forward

    def __call__(self, step: StepPlan) -> torch.Tensor:
        self.count += 1
        return self._forward(step)


@torch.inference_mode()
def test_a_recording_replaces_the_forward_once_it_has_proven_itself() -> None:
    forward = Counting(lambda step: step.input_ids[0].float() * 2 + step.positions[0])
    captured = CapturedForward(forward)
    for token in range(10):
        assert captured(plan(token)).tolist() == [token * 2.0 + 3]
    before = forward.count
    for token in range(10, 20):
        assert captured(plan(token)).tolist() == [token * 2.0 + 3]
    assert forward.count == before
    assert captured(plan(1, 2))[:2].tolist() == [5.0, 8.0]  # another shape goes through the forward
    assert forward.count == before + 1


@torch.inference_mode()
def test_a_recording_that_differs_is_dropped_and_the_forwards_own_answer_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = {"scale": 1.0}
    forward = Counting(lambda step: step.input_ids[0].float() * state["scale"])
    captured = CapturedForward(forward)
    for token in range(3):
        captured(plan(token))
    state["scale"] = 5.0
    assert captured(plan(7)).tolist() == [35.0]
    assert "captures are off" in caplog.text
    before = forward.count
    assert captured(plan(8)).tolist() == [40.0]
    assert forward.count == before + 1


@torch.inference_mode()
def test_a_data_dependent_branch_is_never_recorded() -> None:
    def forward(step: StepPlan) -> torch.Tensor:
        tokens = step.input_ids[0]
        return tokens.float() * (2 if tokens[0] > 5 else 3)

    counting = Counting(forward)
    captured = CapturedForward(counting)
    for token in range(12):
        assert captured(plan(token)).tolist() == [token * (2.0 if token > 5 else 3.0)]
    assert counting.count >= 12


# A target's experts depend on its rows and are not captured.
@pytest.mark.parametrize(("family", "padding"), [("llama", TIGHT), ("llama", BATCH_INVARIANT), ("qwen2_moe", TIGHT)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_models_captured_logits_have_its_own_bits(family: str, padding: Padding, dtype: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build(family), tmp_path)
    model = TransformersModel.load(str(directory), device="cpu", dtype=dtype, single_rows=padding is TIGHT)
    engine = Engine(PlannedBackend(model, padding=padding), kv_memory_mib=4)
    sequence = Sequence("a")
    engine.cache.extend(sequence, list(range(5, 25)))
    engine.step([Append(sequence, 20, 1, SamplingRule())])
    for token in range(30, 50):
        engine.cache.extend(sequence, [token])
        segment = Segment([token], len(sequence) - 1, sequence.pages, 1)
        step = build_plan([segment], engine.page_size, model.device, padding)
        logits = model.forward(step).clone()
        with torch.inference_mode():
            assert torch.equal(logits, model.compute(step)[:1])
    assert isinstance(model._run, CapturedForward)
    assert model._run._captures


@torch.inference_mode()
def test_a_graph_that_does_not_run_is_replaced_by_the_forward(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a recording that cannot run")

    forward = Counting(lambda step: step.input_ids[0].float())
    captured = CapturedForward(forward)
    for token in range(9):
        captured(plan(token))
    (capture,) = captured._captures.values()
    capture.replays[:] = [fails, capture.replays[-1]]
    before = forward.count
    assert captured(plan(7)).tolist() == [7.0]
    assert forward.count == before, "another form of it runs"
    capture.replays[:] = [fails, fails]
    assert captured(plan(8)).tolist() == [8.0]
    assert captured(plan(9)).tolist() == [9.0]
    assert forward.count == before + 2


def test_a_warm_engine_records_nothing_while_it_serves_a_longer_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tiny_models.save(tiny_models.build("llama"), tmp_path)
    engine = Engine(PlannedBackend(TransformersModel.load(str(saved), device="cpu", dtype="bfloat16")), kv_memory_mib=8)
    engine.warm(60)
    assert engine.step_count == 0 and engine.pool.counts().held == engine.pool.counts().cached == 0
    recorded: list[object] = []

    def record(*arguments: object, **options: object) -> None:
        recorded.append(arguments)
        raise RuntimeError("nothing is recorded any more")

    monkeypatch.setattr(torch._C, "_create_graph_by_tracing", record)
    sequence, rule = Sequence("chat"), SamplingRule()
    engine.cache.extend(sequence, list(range(5, 205)))
    engine.step([Append(sequence, 200, 1, rule)])
    for count in (9, 9, 9, 9, 17, 17, 17, 1, 1, 1):
        engine.cache.extend(sequence, list(range(5, 5 + count)))
        engine.step([Append(sequence, count, count, rule)])
    assert not recorded
    engine.cache.release(sequence)
    engine.pool.check()
