"""The tensors of an EAGLE-3 head: their names and shapes, and checks of a file that should hold
them.

Names are those of ``speculators``. Older releases call the layer ``midlayer``. A head may leave out
its embedding: then it uses the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.engine.checkpoint import some
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.eagle3_config import Eagle3Config

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
OFFSETS = "d2t"
"""int64 ``[draft vocabulary]``: a token's id in the target's vocabulary, less its id in the
draft's."""

_OLDER_LAYER, _LAYER = "midlayer.", "layers.0."
_IGNORED = frozenset({"t2d", "verifier_norm.weight", "verifier_lm_head.weight"})
"""Tensors that only training needs. ``t2d`` says which of the target's tokens the draft has: so do
the offsets."""

Shape = tuple[int, ...]


def newer_name(name: str) -> str:
    """Return a tensor's name as ``speculators`` has it."""
    name = name.removeprefix("model.")
    return _LAYER + name.removeprefix(_OLDER_LAYER) if name.startswith(_OLDER_LAYER) else name


def is_ignored(name: str) -> bool:
    """Return True for a tensor that only training needs, by its newer name."""
    return name in _IGNORED


def weight_shapes(config: Eagle3Config) -> dict[str, Shape]:
    """Return the shapes of all weights but the embedding, by their newer names."""
    hidden, size = config.hidden_size, config.head_size
    queries, keys = config.head_count * size, config.kv_head_count * size
    features = len(config.layer_ids) * config.target_hidden_size
    attention = {"q_proj": (queries, 2 * hidden), "k_proj": (keys, 2 * hidden), "v_proj": (keys, 2 * hidden)}
    attention |= {"o_proj": (hidden, queries)}
    feed = {"gate_proj": (config.feed_forward, hidden), "up_proj": (config.feed_forward, hidden)}
    feed |= {"down_proj": (hidden, config.feed_forward)}
    shapes: dict[str, Shape] = {"fc.weight": (hidden, features), "norm.weight": (hidden,)}
    shapes[OUTPUT] = config.draft_vocabulary_size, hidden
    shapes |= {f"{_LAYER}self_attn.{name}.weight": shape for name, shape in attention.items()}
    shapes |= {f"{_LAYER}mlp.{name}.weight": shape for name, shape in feed.items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes |= {f"{_LAYER}{name}.weight": (hidden,) for name in norms}
    if config.has_head_norms:
        shapes |= {f"{_LAYER}self_attn.{name}.weight": (size,) for name in ("q_norm", "k_norm")}
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (features,)
    if config.fc_norm:
        count = len(config.layer_ids)
        shapes |= {f"fc_norm.{index}.weight": (config.target_hidden_size,) for index in range(count)}
    return shapes


def check_tensors(config: Eagle3Config, found: Mapping[str, Shape], *, target_embedding: Shape) -> None:
    """Raise UnsupportedModelError unless the tensors' shapes, by their newer names, are those of
    the head. Without an embedding, the target's must fit."""
    wanted = weight_shapes(config)
    if config.draft_vocabulary_size != config.vocabulary_size:
        wanted[OFFSETS] = (config.draft_vocabulary_size,)
    elif OFFSETS in found:
        wanted[OFFSETS] = (config.vocabulary_size,)
    embedding = config.vocabulary_size, config.hidden_size
    if EMBEDDING in found:
        wanted[EMBEDDING] = embedding
    elif target_embedding != embedding:
        why = f"is {list(target_embedding)}, not {list(embedding)}" if target_embedding else "cannot be read"
        raise UnsupportedModelError(f"the EAGLE-3 head has no {EMBEDDING}, and the target's {why}")
    if missing := set(wanted) - set(found):
        raise UnsupportedModelError(f"the EAGLE-3 head lacks {some(missing)}")
    for name, shape in wanted.items():
        if tuple(found[name]) != shape:
            raise UnsupportedModelError(f"the EAGLE-3 head's {name} is {list(found[name])}, and must be {list(shape)}")
    if foreign := {name for name in found if name not in wanted and not is_ignored(name)}:
        raise UnsupportedModelError(f"the EAGLE-3 head has tensors that are not known here: {some(foreign)}")


def target_ids(offsets: np.ndarray | None, config: Eagle3Config) -> np.ndarray:
    """Return the target's id of each of the draft's tokens, int64. UnsupportedModelError if two are
    equal or one is no token."""
    ids: np.ndarray[Any, np.dtype[np.int64]] = np.arange(config.draft_vocabulary_size, dtype=np.int64)
    if offsets is not None:
        ids = ids + offsets.astype(np.int64)
    if ids.min() < 0 or ids.max() >= config.vocabulary_size:
        raise UnsupportedModelError(f"the EAGLE-3 head's {OFFSETS} names tokens that the target does not have")
    if len(np.unique(ids)) != len(ids):
        raise UnsupportedModelError(f"the EAGLE-3 head's {OFFSETS} names a token of the target twice")
    return ids
