"""A captured forward gives the modules' own bits or is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from slipstream.engine.capture import CapturedForward
from slipstream.engine.engine import Append, Engine
from slipstream.engine.plan import BATCH_INVARIANT, TIGHT, Padding, Segment, StepPlan, build_plan
from slipstream.engine.sequence import Sequence
from slipstream.engine.transformers_model import TransformersModel
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


@pytest.mark.parametrize("padding", [TIGHT, BATCH_INVARIANT])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_models_captured_logits_have_its_own_bits(padding: Padding, dtype: str, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    model = TransformersModel.load(str(directory), device="cpu", dtype=dtype)
    engine = Engine(model, kv_memory_mib=4, padding=padding)
    sequence = Sequence("a")
    engine.cache.extend(sequence, list(range(5, 25)))
    engine.step([Append(sequence, 20, 1, SamplingRule())])
    for token in range(30, 50):
        engine.cache.extend(sequence, [token])
        segment = Segment([token], len(sequence) - 1, sequence.pages, 1)
        step = build_plan([segment], engine.page_size, model.device, padding)
        logits = model.forward(step).clone()
        with torch.inference_mode():
            assert torch.equal(logits, model._run_modules(step)[:1])
    assert isinstance(model._run, CapturedForward)
    assert model._run._captures


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("end", [(), "third"])
@pytest.mark.parametrize("given", [1, 3])
def test_running_on_chooses_what_as_many_steps_choose(
    temperature: float, end: object, given: int, tmp_path: Path
) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    engine = Engine(
        TransformersModel.load(str(directory), device="cpu", dtype="float32"), kv_memory_mib=4, padding=TIGHT
    )
    prompt, count = list(range(5, 125)), 12  # past a multiple of 128 keys, and over a page's border
    rule = SamplingRule(temperature=temperature, seed=3)

    def started(name: str) -> Sequence:
        sequence = Sequence(name)
        engine.cache.extend(sequence, prompt)
        engine.step([Append(sequence, len(prompt), 1, rule, drafting=True)])
        engine.cache.extend(sequence, [77])
        return sequence

    slow = started("slow")
    expected = []
    for _ in range(count):
        expected += engine.step([Append(slow, 1, 1, rule, drafting=True)])[0].choices
        engine.cache.extend(slow, [expected[-1].token])
    if end:
        rule = SamplingRule(temperature=temperature, seed=3, end_token_ids=(expected[2].token,))
        expected = expected[: [choice.token for choice in expected].index(expected[2].token) + 1]
    fast = started("fast")
    if given > 1:  # its last tokens are not there yet
        engine.cache.truncate(fast, len(prompt) + 1 - given)
        engine.cache.extend(fast, [*prompt, 77][-given:])
    got = engine.run_on(Append(fast, given, 1, rule, drafting=True), count)
    assert [choice.token for choice in got] == [choice.token for choice in expected]
    assert [choice.logprob for choice in got] == pytest.approx([choice.logprob for choice in expected], abs=1e-3)
    assert [choice.margin for choice in got] == pytest.approx([choice.margin for choice in expected], abs=1e-3)
    assert fast.tokens == [*prompt, 77, *(choice.token for choice in expected[:-1])]
    engine.cache.release(slow)
    engine.cache.release(fast)
    engine.pool.check()
    assert engine.pool.counts().held == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("end", [False, True])
def test_running_on_together_chooses_what_each_alone_chooses(temperature: float, end: bool, tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path)
    engine = Engine(
        TransformersModel.load(str(directory), device="cpu", dtype="float32"), kv_memory_mib=4, padding=TIGHT
    )
    rule, count = SamplingRule(temperature=temperature, seed=3), 8
    root = Sequence("root")
    engine.cache.extend(root, list(range(5, 125)))  # with what comes, past a multiple of 128 keys and a page's border
    engine.step([Append(root, 120, 1, rule, drafting=True)])

    def forks(name: str) -> list[Sequence]:
        made = [engine.cache.fork(root, f"{name}{index}") for index in range(5)]
        for index, fork in enumerate(made):
            engine.cache.truncate(fork, 120 - 3 * index)
            engine.cache.extend(fork, [77 + index])
        return made

    alone, together = forks("alone"), forks("together")
    expected = [engine.run_on(Append(fork, 1, 1, rule, drafting=True), count) for fork in alone]
    if end:
        ending = expected[1][2].token
        rule = SamplingRule(temperature=temperature, seed=3, end_token_ids=(ending,))
        tokens = [[choice.token for choice in choices] for choices in expected]
        lengths = [row.index(ending) + 1 if ending in row else count for row in tokens]
        expected = [choices[:length] for choices, length in zip(expected, lengths, strict=True)]
        for fork, length, start in zip(alone, lengths, (120, 117, 114, 111, 108), strict=True):
            engine.cache.truncate(fork, start + length)
    got = engine.run_on_together([Append(fork, 1, 1, rule, drafting=True) for fork in together], count)
    for ours, theirs in zip(got, expected, strict=True):
        assert [choice.token for choice in ours] == [choice.token for choice in theirs]
        assert [choice.logprob for choice in ours] == pytest.approx([choice.logprob for choice in theirs], abs=1e-3)
    assert [fork.tokens for fork in together] == [fork.tokens for fork in alone]
    for sequence in (root, *alone, *together):
        engine.cache.release(sequence)
    engine.pool.check()
    assert engine.pool.counts().held == 0
