"""Medusa heads: the numbers of a straightforward reference, in each layout, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

from slipstream.engine.arithmetic import ArithmeticModel, ArithmeticSettings
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.files import HeadTarget
from slipstream.engine.heads.loading import load_heads
from slipstream.engine.hidden_heads import HiddenHeads, Settled
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.rule import SamplingRule

SIZE, VOCABULARY, HEADS = 32, 200, 3
Tensors = dict[str, torch.Tensor]
GREEDY = SamplingRule()


class States:
    """Hidden states that a test sets."""

    hidden_size, layer_count = SIZE, 4

    def __init__(self, rows: int = 5) -> None:
        self.rows: Floats32 = np.random.default_rng(2).normal(size=(rows, SIZE)).astype(np.float32)
        self.taps: list[tuple[int, ...]] = []

    def tap(self, layers: Any = ()) -> None:
        self.taps.append(tuple(layers))

    def last(self) -> Floats32:
        return self.rows

    def tapped(self) -> Floats32:
        raise AssertionError


def weights(known: int = VOCABULARY, layers: int = 1, *, bias: bool = True) -> list[dict[str, torch.Tensor]]:
    """For each head its linear layers and its output matrix, in numbers of bfloat16."""
    torch.manual_seed(3)
    heads = [
        {
            **{f"w{layer}": torch.randn(SIZE, SIZE) / 6 for layer in range(layers)},
            **({f"b{layer}": torch.randn(SIZE) / 6 for layer in range(layers)} if bias else {}),
            "out": torch.randn(known, SIZE),
        }
        for _ in range(HEADS)
    ]
    return [{name: weight.bfloat16().float() for name, weight in head.items()} for head in heads]


def reference(heads: list[dict[str, torch.Tensor]], row: Floats32) -> list[tuple[int, float]]:
    """Each head's likeliest token and its probability."""
    found = []
    for head in heads:
        state = torch.from_numpy(row)
        for layer in range(sum(name.startswith("w") for name in head)):
            inner = head[f"w{layer}"] @ state + head.get(f"b{layer}", torch.zeros(SIZE))
            state = state + silu(inner)
        odds = torch.softmax(head["out"] @ state, -1)
        found.append((int(odds.argmax()), float(odds.max())))
    return found


def original(heads: list[dict[str, torch.Tensor]], prefix: str = "") -> Tensors:
    tensors = {}
    for index, head in enumerate(heads):
        layers = sum(name.startswith("w") for name in head)
        for layer in range(layers):
            tensors[f"{prefix}{index}.{layer}.linear.weight"] = head[f"w{layer}"]
            tensors[f"{prefix}{index}.{layer}.linear.bias"] = head[f"b{layer}"]
        tensors[f"{prefix}{index}.{layers}.weight"] = head["out"]
    return tensors


def speculators(heads: list[dict[str, torch.Tensor]]) -> Tensors:
    tensors = {}
    for index, head in enumerate(heads):
        for name, value in head.items():
            kind, layer = name[0], name[1:]
            tensors[
                f"lm_heads.{index}.weight"
                if name == "out"
                else f"blocks.{index}.layers.{layer}.{'weight' if kind == 'w' else 'bias'}"
            ] = value
    return tensors


SPECULATORS = {
    "speculators_model_type": "medusa",
    "speculators_version": "0.3.0",
    "architectures": ["MedusaModel"],
    "speculators_config": {"algorithm": "medusa"},
    "num_heads": HEADS,
    "num_hidden_layers": 1,
    "medusa_hidden_size": SIZE,
    "medusa_vocab_size": VOCABULARY,
    "truncated_vocab_size": 0,
    "original_lm_head": False,
    "medusa_fc_bias": True,
    "head_weight_decay": 0.8,
    "dtype": "float32",
}
ORIGINAL = {"medusa_num_heads": HEADS, "medusa_num_layers": 1, "base_model_name_or_path": "some/model"}


def folder(directory: Path, config: Mapping[str, Any], tensors: Tensors, name: str = "model.safetensors") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in tensors.items()}, directory / name)
    return directory


def load(directory: Path, states: States | None = None, checkpoint: Path | None = None) -> HiddenHeads:
    facts = ArithmeticModel(ArithmeticSettings(vocabulary=VOCABULARY))
    return load_heads(directory, HeadTarget(facts, states or States(), checkpoint))


def settled(logit_row: int = 0, most: int = 8, rule: SamplingRule = GREEDY, length: int = 9) -> Settled:
    return Settled(logit_row, 1, logit_row, length - 2, [1], [*range(3, 3 + length)], rule, most)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("layout", ["original", "prefixed", "speculators"])
def test_guesses_are_those_of_the_reference(layout: str, layers: int, tmp_path: Path) -> None:
    heads, states = weights(layers=layers), States()
    if layout == "speculators":
        folder(tmp_path, SPECULATORS | {"num_hidden_layers": layers}, speculators(heads))
    else:
        tensors = original(heads, "medusa_head." if layout == "prefixed" else "")
        folder(tmp_path, ORIGINAL | {"medusa_num_layers": layers}, tensors, "medusa_lm_head.safetensors")
    loaded = load(tmp_path, states)
    assert loaded.kind == "medusa" and states.taps == [()] and not loaded.reads_all_rows
    asked = [settled(4), settled(0, most=0), settled(2, most=2), settled(1)]
    guesses = loaded.guess(asked)
    assert guesses[1].tokens == ()
    for each, guess in ((asked[0], guesses[0]), (asked[2], guesses[2]), (asked[3], guesses[3])):
        expected = reference(heads, states.rows[each.logit_row])[: each.most]
        assert guess.tokens == tuple(token for token, _ in expected)
        assert np.allclose(guess.survivals, np.cumprod([odds for _, odds in expected]), rtol=1e-4)


def test_heads_may_know_a_part_of_the_vocabulary(tmp_path: Path) -> None:
    ids = torch.tensor(sorted(np.random.default_rng(1).choice(VOCABULARY, 50, replace=False).tolist()))
    heads = weights(50)
    tensors = speculators(heads) | {"d2t": ids - torch.arange(50), "t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}
    loaded = load(folder(tmp_path, SPECULATORS | {"truncated_vocab_size": 50}, tensors))
    expected = [int(ids[token]) for token, _ in reference(heads, States().rows[0])]
    assert [*loaded.guess([settled()])[0].tokens] == expected
    tensors = speculators(heads) | {"token_map": ids}
    vllm = {"model_type": "medusa", "num_heads": HEADS, "num_hidden_layers": 1, "hidden_size": SIZE}
    vllm |= {"vocab_size": VOCABULARY, "truncated_vocab_size": 50}
    loaded = load(folder(tmp_path / "vllm", vllm, tensors))
    assert [*loaded.guess([settled()])[0].tokens] == expected


def test_heads_may_share_the_targets_output_matrix(tmp_path: Path) -> None:
    heads, output = weights(bias=False), torch.randn(VOCABULARY, SIZE)
    checkpoint = folder(tmp_path / "target", {}, {"model.embed_tokens.weight": output})
    tensors = {name: value for name, value in speculators(heads).items() if not name.startswith("lm_heads")}
    config = {key: value for key, value in SPECULATORS.items() if key != "original_lm_head"}  # which is then true
    directory = folder(tmp_path / "heads", config, tensors)
    for head in heads:
        head["out"] = output
    expected = [token for token, _ in reference(heads, States().rows[0])]
    assert [*load(directory, checkpoint=checkpoint).guess([settled()])[0].tokens] == expected
    with pytest.raises(UnsupportedModelError, match=r"output matrix, and it has no lm_head\.weight"):
        load(directory)


@pytest.mark.parametrize(
    "rule",
    [
        SamplingRule(temperature=0.8, seed=4),
        SamplingRule(temperature=1.0, seed=4, top_k=5),
        SamplingRule(repetition_penalty=1.4),
        SamplingRule(end_token_ids=(5,), first_end_position=40),
    ],
)
def test_any_rule_gets_a_guess(rule: SamplingRule, tmp_path: Path) -> None:
    loaded = load(folder(tmp_path, SPECULATORS, speculators(weights())))
    (guess,) = loaded.guess([settled(rule=rule)])
    assert len(guess.tokens) == HEADS
    assert all(0 < odds <= 1 for odds in guess.survivals)
    assert [*guess.survivals] == sorted(guess.survivals, reverse=True)


def test_nothing_is_guessed_after_an_end_token(tmp_path: Path) -> None:
    heads = weights()
    loaded = load(folder(tmp_path, SPECULATORS, speculators(heads)))
    second = reference(heads, States().rows[0])[1][0]
    (guess,) = loaded.guess([settled(rule=SamplingRule(end_token_ids=(second,)))])
    assert len(guess.tokens) == 2


WRONG: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor | None], str]] = {
    "kind": ({"speculators_model_type": "mlp_speculator"}, {}, r"holds 'mlp_speculator': heads are Medusa or EAGLE-3"),
    "hidden size": ({"medusa_hidden_size": 64}, {}, "medusa_hidden_size is 64, and must be the target's 32"),
    "vocabulary": ({"medusa_vocab_size": 9}, {}, "medusa_vocab_size is 9, and must be the target's 200"),
    "no heads": ({"num_heads": 0}, {}, "num_heads is 0, and must be a whole number from 1"),
    "many heads": ({"num_heads": 65}, {}, "num_heads is 65, and must be from 1 to 64"),
    "words": ({"num_heads": "3"}, {}, "num_heads is '3', and must be a whole number from 1"),
    "unknown key": ({"medusa_gate": True}, {}, "keys that are not known here: medusa_gate"),
    "scale": ({"logit_scale": 0.5}, {}, r"logit_scale is 0.5, and must be 1\.0"),
    "lacking": ({}, {"blocks.1.layers.0.weight": None}, r"lack blocks\.1\.layers\.0\.weight"),
    "foreign": ({}, {"gate.weight": torch.ones(3)}, r"not known here: gate\.weight"),
    "shape": ({}, {"blocks.0.layers.0.weight": torch.ones(3, 3)}, r"is \[3, 3\], and must be \[32, 32\]"),
    "output": (
        {},
        {"lm_heads.0.weight": torch.ones(3, 32)},
        r"lm_heads\.0\.weight is \[3, 32\], and must be \[200, 32\]",
    ),
    "infinite": ({}, {"blocks.0.layers.0.bias": torch.full([32], torch.inf)}, "NaN or infinite"),
    "no map": ({"truncated_vocab_size": 200 - 1}, {}, "know 199 tokens, and lack d2t"),
    "map": ({}, {"d2t": torch.full([200], 1)}, "d2t must name 200 tokens of the target, each once"),
    "short map": ({}, {"d2t": torch.zeros(20, dtype=torch.int64)}, "d2t must be 200 whole numbers"),
    "types": ({}, {"lm_heads.0.weight": torch.ones(200, 32, dtype=torch.int8)}, "types that are not read here"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_does_not_fit_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    changes, replaced, why = WRONG[fault]
    tensors = speculators(weights())
    for name, value in replaced.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    with pytest.raises(UnsupportedModelError, match=why):
        load(folder(tmp_path, SPECULATORS | changes, tensors))


def test_faulty_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is no folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UnsupportedModelError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UnsupportedModelError, match="must be a JSON object"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(ORIGINAL))
    torch.save({}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(UnsupportedModelError, match=r"medusa_lm_head\.pt is pickled, which may run code"):
        load(tmp_path)
    (tmp_path / "medusa_lm_head.safetensors").write_bytes(b"\x08" + bytes(20))
    with pytest.raises(UnsupportedModelError, match=r"medusa_lm_head\.safetensors cannot be read"):
        load(tmp_path)
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(UnsupportedModelError, match="names files elsewhere"):
        load(tmp_path)


def test_heads_of_another_target_are_loaded_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(folder(tmp_path, SPECULATORS | {"target_fingerprint": "abc"}, speculators(weights())))
    assert "were trained for another target (abc" in caplog.text


def test_ids_differ_between_weights(tmp_path: Path) -> None:
    first = load(folder(tmp_path / "a", SPECULATORS, speculators(weights())))
    tensors = speculators(weights())
    tensors["blocks.0.layers.0.weight"] *= 1.01
    second = load(folder(tmp_path / "b", SPECULATORS, tensors))
    assert first.source_id != second.source_id and 0 < first.source_id < 2**64
