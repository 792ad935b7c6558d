"""Medusa: heads that each map the target's last hidden state to one token further ahead.

Head i guesses the token i + 1 places after the one that the target has chosen there. It does not
see the guesses of the heads before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.engine.checkpoint import WEIGHTS, some
from slipstream.engine.compiled.safetensors_file import StoredTensor
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.heads.files import HeadTarget, floats_of_all, read_tensors, source_id_of
from slipstream.engine.heads.matrix import Matrix, silu
from slipstream.engine.heads.medusa_config import MedusaConfig, read_medusa_config
from slipstream.engine.heads.picking import Picked, Picking
from slipstream.engine.hidden_heads import Guess, HiddenStates, Settled
from slipstream.engine.sequence import PageCopy
from slipstream.sampling.kernel import Floats32

_ORIGINAL_WEIGHTS = "medusa_lm_head.safetensors"
_OFFSETS, _TOKEN_MAP = "d2t", "token_map"
"""Names of the tensor that says which tokens the heads know: as offsets in ``speculators``, as ids
in vLLM's layout."""

_IGNORED = frozenset({"t2d", "embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight"})
_PREFIXES = ("medusa_heads.", "medusa_head.")


class _Block(NamedTuple):
    """A residual block: x + silu(linear(x))."""

    linear: Matrix
    bias: Floats32 | None

    def of(self, rows: Floats32) -> Floats32:
        """Return what it makes of rows."""
        inner = self.linear.times(rows)
        if self.bias is not None:
            inner = inner + self.bias
        result: Floats32 = rows + silu(inner)
        return result


class _Head(NamedTuple):
    blocks: list[_Block]
    output: Matrix

    def logits(self, rows: Floats32) -> Floats32:
        """Return logits ``[rows, known tokens]`` of hidden states."""
        for block in self.blocks:
            rows = block.of(rows)
        return self.output.times(rows)


class MedusaHeads:
    """`slipstream.engine.hidden_heads.HiddenHeads` of Medusa heads."""

    kind = "medusa"
    reads_all_rows = False

    def __init__(self, heads: Sequence[_Head], picking: Picking, hidden: HiddenStates, source_id: int) -> None:
        self.source_id = source_id
        self._heads, self._picking, self._hidden = heads, picking, hidden
        hidden.tap(())

    def reserve(self, page_count: int, page_size: int) -> int:
        """Reserve nothing: the heads keep no state."""
        return 0

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy nothing."""

    def guess(self, settled: Sequence[Settled]) -> list[Guess]:
        """See `slipstream.engine.hidden_heads.HiddenHeads`."""
        asked = [index for index, each in enumerate(settled) if each.most > 0 and each.logit_row >= 0]
        guesses = [Guess()] * len(settled)
        if not asked:
            return guesses
        rows = self._hidden.last()[[settled[index].logit_row for index in asked]]
        count = min(len(self._heads), max([settled[index].most for index in asked]))
        logits = np.concatenate([head.logits(rows) for head in self._heads[:count]])
        asking = [settled[index] for index in asked] * count
        positions = [len(each.tokens) + place // len(asked) for place, each in enumerate(asking)]
        picked = self._picking.pick(logits, [each.rule for each in asking], [each.tokens for each in asking], positions)
        for place, index in enumerate(asked):
            guesses[index] = _chain(picked[place :: len(asked)], settled[index])
        return guesses


def _chain(picked: Sequence[Picked | None], settled: Settled) -> Guess:
    """Return what the heads have picked for a sequence, up to an end token."""
    tokens: list[int] = []
    survivals: list[float] = []
    survival = 1.0
    for each in takewhile(lambda found: found is not None, picked[: settled.most]):
        assert each is not None
        survival *= min(1.0, each.odds)
        tokens.append(each.token)
        survivals.append(survival)
        if each.token in settled.rule.ends:
            break
    return Guess(tuple(tokens), tuple(survivals))


def load_medusa(directory: Path, values: Mapping[str, Any], target: HeadTarget) -> MedusaHeads:
    """Load Medusa heads of a folder. UnsupportedModelError says what does not fit."""
    config = read_medusa_config(values, target.hidden.hidden_size, target.facts.vocabulary_size)
    files = (_ORIGINAL_WEIGHTS, WEIGHTS) if config.is_original else (WEIGHTS,)
    tensors = {_newer_name(name): tensor for name, tensor in read_tensors(directory, files).items()}
    ids = _known_tokens(tensors, config)
    names = _names_of(config)
    _check(tensors, names, config)
    weights = floats_of_all(tensors, {name: name for name in names if name in tensors})
    shared = Matrix(target.output_matrix()[ids]) if config.shares_output else None
    heads = [_head(index, config, weights, ids, shared) for index in range(config.head_count)]
    picking = Picking(ids, config.vocabulary_size)
    return MedusaHeads(heads, picking, target.hidden, source_id_of(weights))


def _newer_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _linear(config: MedusaConfig, head: int, layer: int) -> str:
    return f"{head}.{layer}.linear" if config.is_original else f"blocks.{head}.layers.{layer}"


def _output(config: MedusaConfig, head: int) -> str:
    return f"{head}.{config.layer_count}.weight" if config.is_original else f"lm_heads.{head}.weight"


def _names_of(config: MedusaConfig) -> dict[str, tuple[int, ...]]:
    """Return the names of all weights, and their shapes. Biases may be missing."""
    size = config.hidden_size
    names: dict[str, tuple[int, ...]] = {}
    for head in range(config.head_count):
        for layer in range(config.layer_count):
            names[f"{_linear(config, head, layer)}.weight"] = size, size
            names[f"{_linear(config, head, layer)}.bias"] = (size,)
        if not config.shares_output:
            names[_output(config, head)] = config.truncated_size, size
    return names


def _check(tensors: Mapping[str, StoredTensor], names: Mapping[str, tuple[int, ...]], config: MedusaConfig) -> None:
    if missing := {name for name in names if name not in tensors and not name.endswith(".bias")}:
        raise UnsupportedModelError(f"the Medusa heads lack {some(missing)}")
    for name, shape in names.items():
        # vLLM's layout may keep an output matrix whole, and take the known tokens' rows of it.
        whole = (config.vocabulary_size, *shape[1:]) if name.startswith("lm_heads.") else shape
        if name in tensors and tensors[name].shape not in (shape, whole):
            said = list(tensors[name].shape)
            raise UnsupportedModelError(f"the Medusa heads' {name} is {said}, and must be {list(shape)}")
    if foreign := set(tensors) - set(names) - _IGNORED - {_OFFSETS, _TOKEN_MAP}:
        raise UnsupportedModelError(f"the Medusa heads have tensors that are not known here: {some(foreign)}")


def _known_tokens(tensors: Mapping[str, StoredTensor], config: MedusaConfig) -> np.ndarray:
    """Return the target's id of each token that the heads know, int64."""
    count = config.truncated_size
    ids: np.ndarray = np.arange(count, dtype=np.int64)
    name = next((each for each in (_OFFSETS, _TOKEN_MAP) if each in tensors), None)
    if name is None:
        if count < config.vocabulary_size:
            raise UnsupportedModelError(f"the Medusa heads know {count} tokens, and lack {_OFFSETS}, which says which")
        return ids
    if tensors[name].shape != (count,) or not tensors[name].holds_integers:
        raise UnsupportedModelError(f"the Medusa heads' {name} must be {count} whole numbers")
    ids = tensors[name].integers() + (ids if name == _OFFSETS else 0)
    if ids.min() < 0 or ids.max() >= config.vocabulary_size or len(np.unique(ids)) != count:
        raise UnsupportedModelError(f"the Medusa heads' {name} must name {count} tokens of the target, each once")
    return ids


def _head(
    index: int, config: MedusaConfig, weights: Mapping[str, Floats32], ids: np.ndarray, shared: Matrix | None
) -> _Head:
    blocks = []
    for layer in range(config.layer_count):
        name = _linear(config, index, layer)
        blocks.append(_Block(Matrix(weights[f"{name}.weight"]), weights.get(f"{name}.bias")))
    if shared is not None:
        return _Head(blocks, shared)
    output = weights[_output(config, index)]
    return _Head(blocks, Matrix(output if len(output) == len(ids) else output[ids]))
