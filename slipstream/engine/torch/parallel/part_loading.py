"""Loads one rank's part of a checkpoint: it reads only that part, straight to its device.

transformers loads a divided model by its `DistributedConfig`, which needs another package
(accelerate) and leaves DTensors whose row-wise layers all-reduce. So here its class and its plan
are used, and the weights are read piece by piece.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM
from transformers import initialization as init
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from slipstream import stages
from slipstream.engine.checkpoint import NO_TRUST, Trust, check_weights, directory_of, one_line, weight_files
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.pretrained.loading import (
    DTYPES,
    architecture_of,
    heard,
    read_config,
    refuse_no_numbers,
    refuse_partial,
    warn_of_unread,
)
from slipstream.engine.pretrained.vector_math import settle_vector_math
from slipstream.engine.torch import attention
from slipstream.engine.torch.parallel.division import Division, Split, divide
from slipstream.engine.torch.parallel.rank_group import RankGroup

log = logging.getLogger(__name__)


def read_part(name: str, group: RankGroup, *, dtype: str, trust: Trust = NO_TRUST) -> tuple[Any, Division]:
    """Return a ``PreTrainedModel`` with this rank's part of the weights, and what was divided. It
    computes nothing yet. UnsupportedModelError."""
    settle_vector_math()
    directory = directory_of(name, weights=True, trust=trust)
    config = read_config(directory, name, trust)
    if not check_weights(directory, name, trust):
        raise UnsupportedModelError(f"{name} has no safetensors, of which a rank could read its part; save it as such")
    with heard(name):
        model = _without_weights(config, DTYPES[dtype], name, trust)
        division = divide(model, group.size)
        missing, unused = _read(model, division, directory, name, group)
        model.tie_weights(missing_keys=missing, recompute_mapping=False)
    refuse_partial({"missing_keys": missing, "unexpected_keys": unused, "mismatched_keys": ()}, model, name)
    model = model.to(group.device).eval()  # the buffers: the weights are there
    refuse_no_numbers(model, name)
    warn_of_unread(directory, model, name)
    return model, division


def _without_weights(config: Any, dtype: torch.dtype, name: str, trust: Trust) -> Any:
    """Return a model whose parameters have no memory. Its buffers have their values."""
    try:
        with _no_parameters(), init.no_init_weights():
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention.NAME, trust_remote_code=trust.code
            ).requires_grad_(False)
    except Exception as error:  # any of transformers' hundreds of models
        raise UnsupportedModelError(f"cannot make {architecture_of(config)} of {name}: {one_line(error)}") from error


@contextmanager
def _no_parameters() -> Iterator[None]:
    """Inside, a module's parameter loses its memory as soon as the module has it."""
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None:
            self._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _read(model: Any, division: Division, directory: Path, name: str, group: RankGroup) -> tuple[set[str], set[str]]:
    """Read this rank's part of each tensor. Returns the names of tensors that the model lacks, and
    of those that it has no place for."""
    places = model.state_dict(keep_vars=True)
    renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
    missing, unused = set(places), set()
    progress = stages.PartProgress(stages.LOADING, log.info, "tensors", quiet_seconds=stages.QUIET_SECONDS)
    for file in weight_files(directory, name):
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                place, _ = rename_source_key(key, renamings, [], model.base_model_prefix, places)
                if place not in places:
                    unused.add(key)
                    continue
                piece = opened.get_slice(key)
                _refuse_shape(place, piece.get_shape(), places[place], division.splits.get(place), name)
                value = _own_part(piece, places[place], division.splits.get(place), group)
                _set(model, place, value)
                missing.discard(place)
                progress.reach(len(places) - len(missing), len(places))
    return missing, unused


def _own_part(piece: Any, place: torch.Tensor, split: Split | None, group: RankGroup) -> torch.Tensor:
    """Return a rank's part of a tensor, on the group's device. On a CPU it may lie in the mapped
    file."""
    if split is None:
        held = piece[...]
    else:
        own = split.own(group.rank)
        held = piece[:, own] if split.dimension else piece[own]
    value: torch.Tensor = held.to(group.device, place.dtype).contiguous()
    if value.shape == place.shape:
        return value
    filled = value.new_zeros(place.shape)
    filled[tuple([slice(size) for size in value.shape])] = value
    return filled


def _refuse_shape(place: str, held: list[int], wanted: torch.Tensor, split: Split | None, name: str) -> None:
    shape = list(wanted.shape)
    if split is not None:
        shape[split.dimension] = split.whole
    if held != shape:
        raise UnsupportedModelError(
            f"{name} has tensors of other shapes than its config.json says: {place} is {held} instead of {shape}; copy, "
            "download or export it again"
        )


def _set(model: Any, place: str, value: torch.Tensor) -> None:
    owner, _, own_name = place.rpartition(".")
    module = model.get_submodule(owner)
    if own_name in module._parameters:
        module._parameters[own_name] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[own_name] = value
