"""Several steps in one go say what as many single steps say, compiled or by torch."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slipstream.engine.compiled.multi_step_runner import CompiledRunner
from slipstream.engine.compiled_checkpoint import load_compiled_checkpoint
from slipstream.engine.engine import Append, Appended, Engine
from slipstream.engine.errors import OutOfPagesError
from slipstream.engine.model import Segment
from slipstream.engine.sequence import Sequence
from slipstream.engine.stop_flag import StopFlag
from slipstream.engine.torch.plan import TIGHT
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.sampling.faults import LogitsNotFiniteError
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.stop_flags import SetLater

_LONG = 2000
"""Steps, which take longer by far than another thread needs to say a word."""

COMPILED, AT_ONCE = "compiled", "compiled, several steps in a call"


def tight_engine(family: str, directory: Path, mib: float = 4) -> Engine:
    if family in (COMPILED, AT_ONCE):
        saved = tiny_models.save(tiny_models.build("llama", head_dim=32), directory)
        compiled = load_compiled_checkpoint(str(saved), dtype="float32", page_size=16, single_rows=True, threads=1)
        engine = Engine(compiled, kv_memory_mib=2 * mib)
        if family == COMPILED:
            compiled.multi_step_runner = None
        return engine
    saved = tiny_models.save(tiny_models.build(family), directory)
    model = TransformersModel.load(str(saved), device="cpu", dtype="float32", single_rows=True)
    return Engine(PlannedBackend(model, padding=TIGHT), kv_memory_mib=mib)


def chosen(answers: list[list[Appended]]) -> list[list[Choice]]:
    """The choices of a run, which has one for each step."""
    assert all(answer.error is None and len(answer.choices) == 1 for steps in answers for answer in steps)
    return [[answer.choices[0] for answer in steps] for steps in answers]


@pytest.mark.parametrize("family", [AT_ONCE, COMPILED, "llama", "gpt2"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("end", [(), "third"])
@pytest.mark.parametrize("given", [1, 3])
def test_running_on_chooses_what_as_many_steps_choose(
    family: str, temperature: float, end: object, given: int, tmp_path: Path
) -> None:
    engine = tight_engine(family, tmp_path)
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
    got = chosen(engine.run_multi_step([Append(fast, given, 1, rule, drafting=True)], count))[0]
    assert [choice.token for choice in got] == [choice.token for choice in expected]
    assert [choice.logprob for choice in got] == pytest.approx([choice.logprob for choice in expected], abs=1e-3)
    margins = [(ours.margin, theirs.margin) for ours, theirs in zip(got, expected, strict=True)]
    assert all(ours == pytest.approx(theirs, abs=1e-3) or 0.09 < ours < theirs for ours, theirs in margins)
    assert list(fast.tokens) == [*prompt, 77, *(choice.token for choice in expected[:-1])]
    engine.cache.release(slow)
    engine.cache.release(fast)
    engine.pool.check()
    assert engine.pool.counts().held == 0


@pytest.mark.parametrize("family", [AT_ONCE, COMPILED, "llama", "gpt2"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("end", [False, True])
def test_running_on_together_chooses_what_each_alone_chooses(
    family: str, temperature: float, end: bool, tmp_path: Path
) -> None:
    engine = tight_engine(family, tmp_path)
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
    expected = [chosen(engine.run_multi_step([Append(fork, 1, 1, rule, drafting=True)], count))[0] for fork in alone]
    if end:
        ending = expected[1][2].token
        rule = SamplingRule(temperature=temperature, seed=3, end_token_ids=(ending,))
        tokens = [[choice.token for choice in choices] for choices in expected]
        lengths = [row.index(ending) + 1 if ending in row else count for row in tokens]
        expected = [choices[:length] for choices, length in zip(expected, lengths, strict=True)]
        for fork, length, start in zip(alone, lengths, (120, 117, 114, 111, 108), strict=True):
            engine.cache.truncate(fork, start + length)
    got = chosen(engine.run_multi_step([Append(fork, 1, 1, rule, drafting=True) for fork in together], count))
    for ours, theirs in zip(got, expected, strict=True):
        assert [choice.token for choice in ours] == [choice.token for choice in theirs]
        assert [choice.logprob for choice in ours] == pytest.approx([choice.logprob for choice in theirs], abs=1e-3)
    assert [fork.tokens for fork in together] == [fork.tokens for fork in alone]
    for sequence in (root, *alone, *together):
        engine.cache.release(sequence)
    engine.pool.check()
    assert engine.pool.counts().held == 0


@pytest.mark.parametrize("family", [AT_ONCE, COMPILED, "llama", "gpt2"])
def test_what_a_run_has_written_is_there_for_later_steps(family: str, tmp_path: Path) -> None:
    engine = tight_engine(family, tmp_path)
    rule = SamplingRule()
    sequences = [Sequence("run"), Sequence("stepped")]
    for sequence in sequences:
        engine.cache.extend(sequence, list(range(5, 40)))
        engine.step([Append(sequence, 35, 1, rule, drafting=True)])
        engine.cache.extend(sequence, [50])
    choices = chosen(engine.run_multi_step([Append(sequences[0], 1, 1, rule, drafting=True)], 20))[0]
    tokens = [choice.token for choice in choices]
    engine.cache.extend(sequences[1], tokens[:-1])
    engine.step([Append(sequences[1], 20, 1, rule, drafting=True)])
    for sequence in sequences:
        engine.cache.extend(sequence, [60, 61, 62])
    segments = [engine.step([Append(sequence, 3, 3, rule, drafting=True)])[0] for sequence in sequences]
    after_run, after_steps = ([choice.logprob for choice in answer.choices] for answer in segments)
    assert after_run == pytest.approx(after_steps, abs=1e-3)


def test_a_run_that_finds_no_pages_changes_nothing(tmp_path: Path) -> None:
    engine = tight_engine("llama", tmp_path, mib=0.04)  # a few pages
    rule = SamplingRule()
    root = Sequence("root")
    engine.cache.extend(root, list(range(5, 20)))
    engine.step([Append(root, 15, 1, rule, drafting=True)])
    forks = [engine.cache.fork(root, f"fork {index}") for index in range(2)]
    appends = []
    for fork in forks:
        engine.cache.extend(fork, [77])
        appends.append(Append(fork, 1, 1, rule, drafting=True))
    held = engine.pool.counts().held
    with pytest.raises(OutOfPagesError):
        engine.run_multi_step(appends, 16 * engine.pool.page_count)
    assert [len(fork) for fork in forks] == [16, 16]
    assert engine.pool.counts().held == held
    engine.pool.check()


@pytest.mark.parametrize("family", [AT_ONCE, COMPILED, "llama", "gpt2"])
def test_an_interrupted_run_goes_on_where_it_was(family: str, tmp_path: Path) -> None:
    engine = tight_engine(family, tmp_path)
    rule = SamplingRule(temperature=0.8, seed=3)

    def started(name: str) -> Sequence:
        sequence = Sequence(name)
        engine.cache.extend(sequence, list(range(5, 40)))
        engine.step([Append(sequence, 35, 1, rule, drafting=True)])
        engine.cache.extend(sequence, [50])
        return sequence

    whole, parts = started("whole"), started("parts")
    expected = [
        choice.token for choice in chosen(engine.run_multi_step([Append(whole, 1, 1, rule, drafting=True)], 9))[0]
    ]
    got: list[int] = []
    while len(got) < 9:
        stop_flag, left = SetLater(2), 9 - len(got)
        if family == AT_ONCE:
            stop_flag.set()  # and compiled code looks after its first step
        choices = chosen(engine.run_multi_step([Append(parts, 1, 1, rule, drafting=True)], left, stop_flag))[0]
        assert len(choices) == min(left, 3)
        got += [choice.token for choice in choices]
        engine.cache.extend(parts, [got[-1]])
    assert got == expected
    assert parts.tokens[:-1] == whole.tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "rule",
    [
        SamplingRule(),
        SamplingRule(temperature=1.3, seed=2**64 - 1),
        SamplingRule(temperature=0.7, seed=5, top_k=7, top_p=0.8, min_p=0.05),
        SamplingRule(temperature=1e-3, seed=5, end_token_ids=(3, 4, 5)),
        SamplingRule(temperature=0.7, seed=5, first_end_position=60, end_token_ids=tuple(range(200))),
        SamplingRule(temperature=0.7, seed=5, repetition_penalty=1.3),
        (
            SamplingRule(end_token_ids=tuple(range(0, 200, 9))),
            SamplingRule(temperature=1.3, seed=2**64 - 1),
            SamplingRule(temperature=0.7, seed=5, top_k=7, top_p=0.8, min_p=0.05, end_token_ids=(3, 4, 5)),
            SamplingRule(temperature=0.9, seed=6, top_p=0.9, end_token_ids=tuple(range(4095, 0, -2))),
        ),
    ],
    ids=["likeliest", "drawn", "cut", "ends", "late ends", "penalty", "each another"],
)
@pytest.mark.parametrize("drafting", [False, True], ids=["target", "draft"])
def test_several_steps_in_a_call_are_those_steps_to_the_bit(
    drafting: bool, rule: SamplingRule | tuple[SamplingRule, ...], threads: int, dtype: str, tmp_path: Path
) -> None:
    """Sequences of different lengths, which append different numbers of tokens, over borders of
    blocks and pages."""
    rules = rule if isinstance(rule, tuple) else (rule,) * 4
    saved = tiny_models.save(tiny_models.build("llama", head_dim=32, num_key_value_heads=2), tmp_path)
    backend = load_compiled_checkpoint(str(saved), dtype=dtype, page_size=32, single_rows=True, threads=threads)
    engine, count = Engine(backend, kv_memory_mib=8), 40

    def run(name: str) -> list[list[Choice]]:
        appends = []
        for index, (length, added) in enumerate([(61, 1), (5, 5), (47, 2), (90, 33)]):
            sequence = Sequence(f"{name}{index}")
            engine.cache.extend(sequence, [7 + (length * place) % 100 for place in range(length)])
            if length > added:
                engine.cache.truncate(sequence, length - added)
                engine.step([Append(sequence, length - added, 1, SamplingRule(), drafting=True)])
                engine.cache.extend(sequence, [20 + place for place in range(added)])
            appends.append(Append(sequence, added, 1, rules[index], drafting=drafting))
        answers = chosen(engine.run_multi_step(appends, count))
        for append, choices in zip(appends, answers, strict=True):
            first = len(append.sequence) - len(choices) + 1
            assert list(append.sequence.tokens[first:]) == [choice.token for choice in choices[:-1]]
            engine.cache.release(append.sequence)
        return answers

    runner, backend.multi_step_runner = backend.multi_step_runner, None
    steps = run("steps")
    backend.multi_step_runner = runner
    assert run("run") == steps


def test_a_run_whose_logits_are_not_finite_fails_as_its_step_does(tmp_path: Path) -> None:
    engine = tight_engine(AT_ONCE, tmp_path)
    healthy, broken = Sequence("healthy"), Sequence("broken")
    for sequence in (healthy, broken):
        engine.cache.extend(sequence, list(range(5, 40)))
        engine.step([Append(sequence, 35, 1, SamplingRule(), drafting=True)])
        engine.cache.extend(sequence, [50])
    engine.backend._memory[:, broken.pages] = float("nan")  # type: ignore[attr-defined]
    appends = [Append(sequence, 1, 1, SamplingRule(), drafting=True) for sequence in (healthy, broken)]
    well, ill = engine.run_multi_step(appends, 4)
    assert len(well) == 4 and all(answer.error is None for answer in well)
    assert [type(answer.error) for answer in ill] == [LogitsNotFiniteError]


def test_a_call_computes_nothing_after_the_last_sequence_has_ended(tmp_path: Path) -> None:
    """Each by its own end tokens, of which a rule may list thousands."""
    engine = tight_engine(AT_ONCE, tmp_path)
    runner = engine.backend.multi_step_runner
    found: list[list[list[Choice]]] = []
    assert isinstance(runner, CompiledRunner)
    for ends in (None, (2, 4)):
        segments, rules = [], []
        for index, length in enumerate((35, 50)):
            sequence = Sequence(f"{ends} {index}")
            engine.cache.extend(sequence, [(7 * place + index) % 250 for place in range(length)])
            segments.append(Segment(sequence.tokens[:], 0, sequence.pages, 1))
            engine.cache.extend(sequence, [0] * 8)
            said = [step[index].token for step in found[0]] if ends else []
            strangers = [token for token in range(5000 + index, 0, -1) if token not in said]
            listed = (*strangers, said[ends[index]]) if ends else ()
            rules.append(SamplingRule(temperature=1.5, seed=index, end_token_ids=listed))
        found.append(runner.run(segments, rules, 9, StopFlag(), drafting=True))
    whole, ended = found
    firsts = [[step[index].token for step in whole].index(whole[at][index].token) for index, at in enumerate((2, 4))]
    assert len(whole) == 9 and firsts == [2, 4]
    assert ended == whole[:5]


def test_a_call_ends_soon_after_another_thread_has_set_the_stop_flag(tmp_path: Path) -> None:
    engine = tight_engine(AT_ONCE, tmp_path)
    sequence, stop_flag, begun = Sequence("long"), StopFlag(), threading.Event()
    engine.cache.extend(sequence, [50])
    runner = engine.backend.multi_step_runner
    assert isinstance(runner, CompiledRunner)
    walk = runner._walk

    def watched(place: int, thread: int) -> None:
        begun.set()
        walk(place, thread)

    runner._walk = watched

    def say() -> None:
        begun.wait()
        stop_flag.set()

    saying = threading.Thread(target=say)
    saying.start()
    (choices,) = chosen(
        engine.run_multi_step([Append(sequence, 1, 1, SamplingRule(), drafting=True)], _LONG, stop_flag)
    )
    saying.join()
    assert 0 < len(choices) < _LONG
    assert len(sequence) == len(choices)
    whole = Sequence("whole")
    engine.cache.extend(whole, [50])
    (expected,) = chosen(engine.run_multi_step([Append(whole, 1, 1, SamplingRule(), drafting=True)], len(choices) + 1))
    engine.cache.extend(sequence, [choices[-1].token])
    (following,) = chosen(engine.run_multi_step([Append(sequence, 1, 1, SamplingRule(), drafting=True)], 2))
    assert [*choices, following[0]] == expected, "and goes on where it was"
