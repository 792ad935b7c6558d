"""A draft's choices on a CUDA device, and its steps in one go, by Triton's interpreter."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux")

from slipstream.engine.engine import Append, Engine
from slipstream.engine.model import Segment
from slipstream.engine.pretrained.loading import load_pretrained
from slipstream.engine.sequence import Sequence
from slipstream.engine.stop_flag import StopFlag
from slipstream.engine.torch.attention import NAME
from slipstream.engine.torch.cuda.attention import PAGED
from slipstream.engine.torch.cuda.backend import CudaBackend
from slipstream.engine.torch.cuda.chooser import Chooser
from slipstream.engine.torch.cuda.step import Step
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.faults import LogitsNotFiniteError
from slipstream.sampling.row import Choice, Row
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.stop_flags import SetLater
from tests.tensors import choose

# As a device does without being asked.
pytestmark = [
    pytest.mark.usefixtures("products_by_row"),
    pytest.mark.filterwarnings("ignore:All-NaN", "ignore:invalid value", "ignore:overflow encountered"),
]
CPU = torch.device("cpu")
VOCABULARY = 1100  # more than a section, and no whole number of blocks
STEPS = 2
RULES = {
    "likeliest": SamplingRule(),
    "drawn": SamplingRule(temperature=1.0, seed=2**64 - 1),
    "top-k": SamplingRule(temperature=0.7, seed=5, top_k=7),
    "top-p": SamplingRule(temperature=0.7, seed=6, top_p=0.8),
    "few": SamplingRule(temperature=3.0, seed=6, top_p=0.05),
    "min-p": SamplingRule(temperature=0.9, seed=7, min_p=0.2),
    "all": SamplingRule(temperature=0.8, seed=8, top_k=20, top_p=0.7, min_p=0.05),
    "all kept": SamplingRule(temperature=0.8, seed=9, top_k=VOCABULARY, top_p=1.0),
}
MIXED = list(RULES.values())


def chosen_here(logits: torch.Tensor, rules: list[SamplingRule], positions: list[int]) -> list[list[Choice]]:
    chooser = Chooser(logits.shape[1], 8, CPU)
    chooser.begin_run([SamplingRule(temperature=1.0, top_p=0.1)], [3], 1)  # of which nothing may be left
    chooser.choose(logits[:1])
    chooser.begin_run(rules, positions, STEPS)
    for _ in range(STEPS):
        chooser.choose(logits)
        tokens = chooser.next_tokens().tolist()
        assert [tokens] == chooser.arrived_tokens()
    return chooser.fetch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rules",
    [*([rule] * 3 for rule in RULES.values()), MIXED],
    ids=[*RULES, "each row another"],
)
def test_a_device_chooses_what_the_host_chooses(rules: list[SamplingRule], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(len(rules), VOCABULARY, generator=generator) * 2.5 - 3).to(dtype)
    positions = [5 + 2 * row for row in range(len(rules))]
    for step, choices in enumerate(chosen_here(logits, rules, positions)):
        rows = [Row(rule, place + step, (), drafting=True) for rule, place in zip(rules, positions, strict=True)]
        for row, ours, theirs in zip(rows, choices, choose(logits, rows), strict=True):
            assert ours.token == theirs.token
            if row.rule.top_p < 1 and ours.logprob > theirs.logprob + 1e-5:
                # The host threw out what was no likelier than the first winner, and some that a
                # top-p does not keep stayed.
                assert ours.logprob < theirs.logprob - math.log(row.rule.top_p) + 1e-5
                assert ours.margin > min(theirs.margin, 0.1) - 1e-6
            else:
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
                assert ours.margin == pytest.approx(theirs.margin, abs=1e-6) or 0.09 < ours.margin < theirs.margin


def test_of_equals_the_lower_token_is_chosen_and_steps_end_before_what_is_no_number() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[0, [1030, 700, 71, 70]] = 4.0
    logits[1, 9] = 1.0
    chooser = Chooser(VOCABULARY, 2, CPU)
    chooser.begin_run([SamplingRule()] * 2, [0, 0], 3)
    chooser.choose(logits)
    for strange in (float("nan"), float("inf")):
        logits[1, 1099] = strange
        chooser.choose(logits)
        assert 0 <= int(chooser.next_tokens()[1]) < VOCABULARY
    found = chooser.fetch()
    assert [[choice.token for choice in step] for step in found] == [[70, 9]]
    assert [choice.margin for choice in found[0]] == [0.0, 1.0]
    assert found[0][1].logprob == pytest.approx(1 - math.log(VOCABULARY - 1 + math.e))


def engine_of(directory: Path) -> Engine:
    saved = tiny_models.save(tiny_models.build("llama"), directory)
    loaded = load_pretrained(str(saved), device="cpu", dtype="float32", attention=NAME)
    model = TransformersModel(loaded, {}, kernels=PAGED)
    return Engine(CudaBackend(model, page_size=16, row_counts=(1, 8)), kv_memory_mib=4)


def started(engine: Engine, name: str, given: int) -> Sequence:
    """A sequence with ``given`` tokens yet to be computed, the next ones beyond a page."""
    sequence = Sequence(name)
    engine.cache.extend(sequence, list(range(5, 19)))
    engine.step([Append(sequence, 14, 1, SamplingRule(), drafting=True)])
    engine.cache.extend(sequence, list(range(70, 70 + given)))
    return sequence


def run(
    engine: Engine,
    sequences: list[Sequence],
    rules: list[SamplingRule],
    count: int,
    stop_flag: StopFlag | None = None,
) -> list[list[int]]:
    appends = [
        Append(sequence, len(sequence) - 14, 1, rule, drafting=True)
        for sequence, rule in zip(sequences, rules, strict=True)
    ]
    answers = engine.run_multi_step(appends, count, stop_flag or StopFlag())
    return [[answer.choices[0].token for answer in steps] for steps in answers]


def test_several_steps_are_those_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, count = engine_of(tmp_path), 5
    rules = [SamplingRule(), SamplingRule(temperature=0.8, seed=3), SamplingRule(temperature=0.8, seed=4, top_p=0.9)]
    runner, engine.backend.multi_step_runner = engine.backend.multi_step_runner, None
    steps = run(engine, [started(engine, f"steps {index}", 1 + index) for index in range(3)], rules, count)
    ending = SamplingRule(temperature=0.8, seed=3, end_token_ids=(steps[1][2],))
    assert steps[1].index(steps[1][2]) == 2
    engine.backend.multi_step_runner = runner
    called: list[int] = []
    assert runner is not None
    own_run = runner.run

    def watched_run(
        segments: list[Segment], rules: list[SamplingRule], count: int, stop_flag: StopFlag, **others: Any
    ) -> list[list[Choice]]:
        called.append(count)
        return own_run(segments, rules, count, stop_flag, **others)

    monkeypatch.setattr(runner, "run", watched_run)
    together = [started(engine, f"run {index}", 1 + index) for index in range(3)]
    assert run(engine, together, [rules[0], ending, rules[2]], count) == [steps[0], steps[1][:3], steps[2]]
    assert called == [count]
    for sequence, tokens, length in zip(together, steps, (count, 3, count), strict=True):
        assert list(sequence.tokens[-length + 1 :]) == tokens[: length - 1]
    again = [started(engine, f"again {index}", 1) for index in range(2)]
    assert [len(tokens) for tokens in run(engine, again, rules[:2], 9, SetLater(1))] == [2, 2]
    taken: list[int] = []
    own_lay_out = Step.lay_out

    def watched_lay_out(step: Step, segments: list[Segment]) -> int:
        taken.append(len(segments))
        return own_lay_out(step, segments)

    monkeypatch.setattr(Step, "lay_out", watched_lay_out)
    ends = SamplingRule(end_token_ids=(steps[0][1],))
    assert run(engine, [started(engine, "ends", 1)], [ends], 9) == [steps[0][:2]]
    assert len(taken) == 2 + 3  # of which two begin the sequence, and the last was laid out in vain


def test_more_rows_than_a_step_has_and_what_is_no_number_are_left_to_single_steps(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    many = started(engine, "many", 9)
    expected = started(engine, "expected", 9)
    runner, engine.backend.multi_step_runner = engine.backend.multi_step_runner, None
    steps = run(engine, [expected], [SamplingRule()], 3)
    engine.backend.multi_step_runner = runner
    assert run(engine, [many], [SamplingRule()], 3) == steps
    healthy, broken = started(engine, "healthy", 1), started(engine, "broken", 1)
    for page in broken.pages:
        for layer in engine.backend.model._memory.keys:  # type: ignore[attr-defined]
            layer[:, page] = float("nan")
    appends = [Append(sequence, 1, 1, SamplingRule(), drafting=True) for sequence in (healthy, broken)]
    well, ill = engine.run_multi_step(appends, 3)
    assert len(well) == 3 and all(answer.error is None for answer in well)
    assert [type(answer.error) for answer in ill] == [LogitsNotFiniteError]
