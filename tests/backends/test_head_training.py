"""Heads that `training.heads` trains for a tiny target learn, and load as they were trained."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.engine.heads.eagle3_config import TargetShape, read_eagle3_config
from slipstream.engine.heads.eagle3_loading import read_eagle3
from slipstream.engine.heads.files import HeadTarget
from slipstream.engine.heads.loading import load_heads
from slipstream.engine.hidden_heads import Settled
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.sampling.rule import SamplingRule
from tests import tiny_models
from tests.eagle3_heads import HIDDEN, OFFSETS, SHAPE, config_values, plain_chain, random_weights
from training import corpus
from training.eagle3_module import Eagle3
from training.eagle3_training import Eagle3Training, unroll
from training.eagle3_training import config_values as trained_values
from training.heads import Read, Recipe, Target, Trained, answer_tokens, kept_reads, read_all, train
from training.medusa_training import MedusaTraining

LAYERS = (0, 1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    directory = tmp_path_factory.mktemp("target")
    tiny_models.save(tiny_models.build("llama"), directory)
    return Target(directory, "cpu")


@pytest.fixture(scope="module")
def reads(target: Target) -> list[Read]:
    entries = corpus.read(embedded_directory("target").parent / "symbols.jsonl")[:40]
    return read_all(target, entries, LAYERS, 1, 256, seed=0)


def trained(kind: str, target: Target, reads: list[Read]) -> Trained:
    if kind == "medusa":
        return MedusaTraining(target, 2)
    values = trained_values(target, LAYERS, 512, 3, {"intermediate_size": 64})
    return Eagle3Training(target, 3, answer_tokens(reads), values)


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_heads_learn_what_the_target_says(kind: str, target: Target, reads: list[Read]) -> None:
    heads = trained(kind, target, reads)
    few = reads[:1] * 5  # four of them only measure
    before = heads.tell(few[0].floats())
    train(heads, few, Recipe(steps=12, peak_learning_rate=2e-3, seed=0))
    after = heads.tell(few[0].floats())
    assert after.loss < before.loss
    assert after.counted.tolist() == before.counted.tolist()


def test_an_eagle3_head_is_saved_in_the_speculators_layout(tmp_path: Path, target: Target, reads: list[Read]) -> None:
    heads = trained("eagle3", target, reads)
    heads.save(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    shape = target.model.config
    stored = read_eagle3(
        tmp_path, values, TargetShape(shape.num_hidden_layers, shape.hidden_size, shape.vocab_size), None
    )
    state = heads.module.state_dict()
    assert set(stored.weights) == set(state)
    for name, weight in stored.weights.items():
        assert np.array_equal(weight, state[name].to(torch.bfloat16).float().numpy()), name
    assert stored.target_ids.tolist() == sorted(stored.target_ids.tolist())
    common = {token for token, _ in answer_tokens(reads).most_common(100)}
    assert common <= {*stored.target_ids.tolist()}


def test_medusa_heads_are_saved_as_they_load(tmp_path: Path, target: Target, reads: list[Read]) -> None:
    heads = trained("medusa", target, reads)
    train(heads, reads[:1] * 5, Recipe(steps=2, peak_learning_rate=2e-3, seed=0))
    heads.save(tmp_path)
    last = reads[0].last[0, :5].float()
    states: Any = SimpleNamespace(hidden_size=last.shape[1], tap=lambda layers: None, last=last.numpy)
    facts: Any = SimpleNamespace(vocabulary_size=target.model.config.vocab_size, weights_fingerprint="")
    loaded = load_heads(tmp_path, HeadTarget(facts, states, None))
    assert loaded.kind == "medusa"
    (guess,) = loaded.guess([Settled(0, 1, 4, 0, [1], [1, 2], SamplingRule(), 8)])
    said = [head.bfloat16()(last[4].bfloat16()).argmax() for head in heads.module.children()]
    assert list(guess.tokens) == [int(token) for token in said]


def test_the_unrolled_steps_are_those_of_a_head_in_use() -> None:
    """If the text goes on as the head guesses, each step says what the head says in use."""
    values = config_values()
    config = read_eagle3_config(values, SHAPE)
    weights = random_weights(config)
    module = Eagle3(config)
    module.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items() if name != OFFSETS})
    rng = np.random.default_rng(0)
    states = rng.normal(0, 1, (12, 3 * HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, 64, 8).tolist()
    said = plain_chain(config, weights, states[:7], tokens, 4)
    ids = np.arange(config.draft_vocabulary_size) + weights[OFFSETS]
    tokens += [int(ids[logits.argmax()]) for logits in said]
    parts = [torch.from_numpy(part)[None] for part in np.split(states, 3, axis=-1)]
    read = Read(torch.tensor([tokens]), torch.ones(1, 12, dtype=torch.bool), parts, torch.empty(0))
    rows = torch.tensor([0, 0]), torch.tensor([3, 6])
    for expected, logits in zip(said, unroll(module, read, rows, 4), strict=True):
        assert logits[1].detach().numpy() == pytest.approx(expected, abs=1e-4)


def test_states_are_read_once(tmp_path: Path, reads: list[Read]) -> None:
    def never() -> list[Read]:
        raise AssertionError("the file has them")

    path = tmp_path / "states.pt"
    kept_reads(path, lambda: reads)
    again = kept_reads(path, never)
    assert len(again) == len(reads)
    assert torch.equal(again[1].states[1], reads[1].states[1])
    assert torch.equal(again[1].are_answers, reads[1].are_answers)
