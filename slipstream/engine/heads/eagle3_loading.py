"""Loads an EAGLE-3 head from a folder: a config.json, and weights in safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.engine.compiled.safetensors_file import StoredTensor, stored_tensors
from slipstream.engine.heads.eagle3 import Eagle3Heads
from slipstream.engine.heads.eagle3_config import Eagle3Config, TargetShape, read_eagle3_config
from slipstream.engine.heads.eagle3_layer import Eagle3Layer
from slipstream.engine.heads.eagle3_tensors import (
    EMBEDDING,
    OFFSETS,
    check_tensors,
    is_ignored,
    newer_name,
    target_ids,
)
from slipstream.engine.heads.files import HeadTarget, floats_of_all, read_tensors, source_id_of
from slipstream.engine.heads.picking import Picking
from slipstream.sampling.kernel import Floats32

_TARGET_EMBEDDING = "model.embed_tokens.weight"


class StoredHead(NamedTuple):
    """A head as its files have it."""

    config: Eagle3Config
    weights: dict[str, Floats32]
    """float32, by their newer names, the embedding included."""
    target_ids: np.ndarray
    """The target's id of each of the draft's tokens, int64."""


def read_eagle3(
    directory: Path, values: Mapping[str, Any], shape: TargetShape, target_directory: Path | None
) -> StoredHead:
    """Read a head whose config.json has these ``values``. A head without an embedding takes that of
    the target's folder. UnsupportedModelError names what does not fit."""
    config = read_eagle3_config(values, shape)
    tensors = {newer_name(name): tensor for name, tensor in read_tensors(directory).items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not is_ignored(name)}
    borrowed = None if EMBEDDING in tensors else _target_embedding(target_directory)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    check_tensors(config, shapes, target_embedding=() if borrowed is None else borrowed.shape)
    offsets = tensors.pop(OFFSETS, None)
    ids = target_ids(None if offsets is None else offsets.integers(), config)
    if borrowed is not None:
        tensors[EMBEDDING] = borrowed
    return StoredHead(config, floats_of_all(tensors, {name: name for name in tensors}), ids)


def load_eagle3(directory: Path, values: Mapping[str, Any], target: HeadTarget) -> Eagle3Heads:
    """Load the head of a folder. UnsupportedModelError says what does not fit."""
    hidden, vocabulary_size = target.hidden, target.facts.vocabulary_size
    shape = TargetShape(hidden.layer_count, hidden.hidden_size, vocabulary_size)
    stored = read_eagle3(directory, values, shape, target.directory)
    layer = Eagle3Layer(stored.config, stored.weights)
    return Eagle3Heads(layer, Picking(stored.target_ids, vocabulary_size), hidden, source_id_of(stored.weights))


def _target_embedding(directory: Path | None) -> StoredTensor | None:
    tensors = None if directory is None else stored_tensors(directory)
    return None if tensors is None else tensors.get(_TARGET_EMBEDDING)
