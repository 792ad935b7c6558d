"""Files of EAGLE-3 heads: both layouts load alike, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.eagle3_config import read_eagle3_config
from slipstream.engine.heads.eagle3_loading import read_eagle3
from slipstream.engine.heads.files import HeadTarget
from slipstream.engine.heads.loading import load_heads
from tests.eagle3_heads import HIDDEN, LAYERS, SHAPE, VOCABULARY, config_values, random_weights, write

EMBEDDING = "embed_tokens.weight"
VALUES = config_values(norm_before_residual=False)
WEIGHTS = random_weights(read_eagle3_config(VALUES, SHAPE))


def older(directory: Path) -> Path:
    """Write the head as a release from before ``speculators``, without its embedding."""
    layer = dict(VALUES["transformer_layer_config"], architectures=["LlamaForCausalLMEagle3"], torch_dtype="float16")
    values = layer | {"draft_vocab_size": 40, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    names = {name: name.replace("layers.0.", "midlayer.") for name in WEIGHTS if name != EMBEDDING}
    tensors = {new: WEIGHTS[name] for name, new in names.items()}
    return write(directory, values, tensors | {"t2d": np.zeros(VOCABULARY, np.bool_)})


def target_of(directory: Path, embedding: np.ndarray) -> Path:
    directory.mkdir()
    save_file({"model.embed_tokens.weight": embedding}, directory / "model.safetensors")
    return directory


def test_an_older_release_takes_the_targets_embedding(tmp_path: Path) -> None:
    directory = older(tmp_path / "head")
    target = target_of(tmp_path / "target", WEIGHTS[EMBEDDING])
    values = json.loads((directory / "config.json").read_text())
    found = read_eagle3(directory, values, SHAPE, target)
    same = read_eagle3(write(tmp_path / "new", VALUES, WEIGHTS), VALUES, SHAPE, None)
    assert found.config == same.config
    assert found.target_ids.tolist() == same.target_ids.tolist()
    assert {*found.weights} == {*same.weights}
    assert all(np.array_equal(weight, same.weights[name]) for name, weight in found.weights.items())


@pytest.mark.parametrize("width", [None, HIDDEN + 16])
def test_an_embedding_that_is_missing_is_named(tmp_path: Path, width: int | None) -> None:
    directory = older(tmp_path / "head")
    target = None if width is None else target_of(tmp_path / "target", np.zeros((VOCABULARY, width), np.float32))
    with pytest.raises(UnsupportedModelError, match=EMBEDDING):
        read_eagle3(directory, json.loads((directory / "config.json").read_text()), SHAPE, target)


def loaded(directory: Path) -> Any:
    hidden: Any = SimpleNamespace(hidden_size=HIDDEN, layer_count=LAYERS, tap=lambda layers: None)
    facts: Any = SimpleNamespace(vocabulary_size=VOCABULARY, weights_fingerprint="")
    return load_heads(directory, HeadTarget(facts, hidden, None))


def test_heads_are_told_apart_by_their_config_and_their_weights(tmp_path: Path) -> None:
    heads = loaded(write(tmp_path / "one", VALUES, WEIGHTS))
    assert heads.kind == "eagle3"
    other = random_weights(read_eagle3_config(VALUES, SHAPE), seed=1)
    assert loaded(write(tmp_path / "other", VALUES, other)).source_id != heads.source_id
    assert loaded(write(tmp_path / "again", VALUES, WEIGHTS)).source_id == heads.source_id


def _without(name: str) -> dict[str, np.ndarray]:
    return {key: weight for key, weight in WEIGHTS.items() if key != name}


FAULTS: list[tuple[str, dict[str, np.ndarray]]] = [
    ("lacks fc.weight", _without("fc.weight")),
    ("norm.weight is .33.", WEIGHTS | {"norm.weight": np.ones(33, np.float32)}),
    ("NaN", WEIGHTS | {"norm.weight": np.full(HIDDEN, np.nan, np.float32)}),
    ("mask_hidden", WEIGHTS | {"mask_hidden": np.zeros(3, np.float32)}),
    ("d2t", WEIGHTS | {"d2t": np.full(40, VOCABULARY)}),
]


@pytest.mark.parametrize(("fault", "weights"), FAULTS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_does_not_fit_is_named(tmp_path: Path, fault: str, weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(UnsupportedModelError, match=fault):
        loaded(write(tmp_path, VALUES, weights))


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    write(tmp_path, VALUES, WEIGHTS)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="pickled"):
        loaded(tmp_path)


def test_sizes_that_are_no_whole_vectors_are_refused(tmp_path: Path) -> None:
    values = config_values(layer={"intermediate_size": 40})
    with pytest.raises(UnsupportedModelError, match="intermediate_size"):
        loaded(write(tmp_path, values, random_weights(read_eagle3_config(values, SHAPE))))
