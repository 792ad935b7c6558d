"""A rank's backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import transformers

from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.generation_config import read_generation_config
from slipstream.engine.model import Backend
from slipstream.engine.pretrained.fingerprint import Sample, fingerprint_of, sampled_places
from slipstream.engine.torch.parallel.division import Division, Split
from slipstream.engine.torch.parallel.layers import connect
from slipstream.engine.torch.parallel.loaded import Loaded
from slipstream.engine.torch.parallel.part_loading import read_part
from slipstream.engine.torch.parallel.rank_group import RankGroup
from slipstream.engine.torch.plan import BATCH_INVARIANT, TIGHT
from slipstream.engine.torch.planned_backend import PlannedBackend
from slipstream.engine.torch.transformers_model import Whole
from slipstream.sampling.kernel import Floats32


def load_part(
    name: str, group: RankGroup, *, dtype: str, page_size: int, exact: bool, trust: Trust = NO_TRUST
) -> Backend:
    """Load this rank's part of a model directory or hub id, on the group's device.

    With ``exact`` a row's bits depend on its sequence and the number of ranks alone.
    UnsupportedModelError if it cannot be served or divided, or if the ranks differ.
    """
    loaded, division = read_part(name, group, dtype=dtype, trust=trust)
    generation = read_generation_config(directory_of(name, weights=True, trust=trust))
    samples = _samples(loaded, division, group)
    whole = Whole(division.vocabulary_size, lambda ends: fingerprint_of(loaded, samples, ends))
    group.agree(
        [
            ("checkpoint, dtype or kind of device", whole.fingerprint(())),
            ("page size", page_size),
            ("generation config", generation),
        ]
    )
    part_of = planned_part
    if group.device.type == "cuda":
        from slipstream.engine.torch.parallel.cuda_part import cuda_part as part_of  # and with it Triton
    part = part_of(Loaded(name, loaded, generation, division, whole), group, page_size=page_size, exact=exact)
    versions = torch.__version__, transformers.__version__
    group.agree([("version of torch or transformers", versions), ("order of sums", part.mark)])
    return part


def planned_part(loaded: Loaded, group: RankGroup, *, page_size: int, exact: bool) -> Backend:
    """Return the backend of a rank's part on a CPU. UnsupportedModelError if it cannot be
    served."""
    connect(loaded.model, loaded.division, group)
    model = loaded.served(group, single_rows=not exact)
    return PlannedBackend(model, page_size=page_size, padding=BATCH_INVARIANT if exact else TIGHT)


def _samples(model: Any, division: Division, group: RankGroup) -> list[Sample]:
    """Return samples of the whole model. Each rank knows the values of its part."""
    weights: dict[str, torch.Tensor] = dict(sorted(model.state_dict().items()))
    known = [_known(weight, division.splits.get(name), group.rank) for name, weight in weights.items()]
    ends = np.cumsum([len(values) for _, values in known])[:-1]
    told = group.share(torch.from_numpy(np.concatenate([values for _, values in known])))
    sums = np.split(told.sum(dim=0).numpy(), ends)  # one rank has the value, and the others zero
    return [
        (name, shape, total if name in division.splits else own)
        for name, (shape, own), total in zip(weights, known, sums, strict=True)
    ]


def _known(weight: torch.Tensor, split: Split | None, rank: int) -> tuple[tuple[int, ...], Floats32]:
    """Return the shape of a whole weight, and its sampled values: 0 where another rank has them."""
    if split is None:
        sampled = weight.reshape(-1)[:: sampled_places(weight.numel()).step]
        return tuple(weight.shape), sampled.to("cpu", torch.float32).numpy()
    shape = list(weight.shape)
    shape[split.dimension] = split.whole
    places = list(np.unravel_index(sampled_places(math.prod(shape)), shape))
    own, divided = split.own(rank), places[split.dimension]
    is_own = (divided >= own.start) & (divided < own.stop)
    places[split.dimension] = divided - own.start
    values = np.zeros(len(divided), dtype=np.float32)
    picked = weight[tuple(torch.from_numpy(place[is_own]) for place in places)]
    values[is_own] = picked.to("cpu", torch.float32).numpy()
    return tuple(shape), values
