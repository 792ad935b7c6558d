"""A model that several ranks share: which can be, the backend of rank 0, and the others' work."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import numpy as np

from slipstream.engine.arithmetic import SCHEME
from slipstream.engine.checkpoint import refuse_without_torch
from slipstream.engine.errors import UnsupportedModelError
from slipstream.garbage import freeze_live_objects, resume_collection
from slipstream.hosting.ranks.follower import leave_signals_to_rank_0
from slipstream.hosting.ranks.local_ranks import LocalRanks
from slipstream.hosting.ranks.place import Place
from slipstream.hosting.settings import ModelServiceSettings
from slipstream.hosting.tokenizer_files import is_gguf
from slipstream.sampling.choose import warm as warm_choosing
from slipstream.sampling.sharing import choose_with
from slipstream.threads import default_threads

if TYPE_CHECKING:
    from slipstream.engine.model import Backend
    from slipstream.engine.torch.parallel.backend import LeadingBackend
    from slipstream.engine.torch.parallel.rank_group import RankGroup

log = logging.getLogger(__name__)

_START_SECONDS = 1800.0
"""Seconds that a rank may take longer than another one to load its part."""

_STEP_SECONDS = 60.0
"""Seconds that ranks wait for one another in a step. Between machines this alone finds a rank that
is frozen."""


def refuse_unshared(settings: ModelServiceSettings, name: str) -> None:
    """Raise UnsupportedModelError if several ranks are asked for, and cannot share the model."""
    if settings.tensor_parallel_size == 1:
        return
    flag = f"--tensor-parallel-size {settings.tensor_parallel_size}"
    if name.startswith(SCHEME) or is_gguf(name):
        raise UnsupportedModelError(f"{flag} shares out checkpoints, and {name} is none: give a model's directory")
    if settings.engine not in ("auto", "torch"):
        raise UnsupportedModelError(f"{flag} needs --engine torch, but --engine is {settings.engine}")
    if settings.device not in ("cpu", "cuda"):
        raise UnsupportedModelError(
            f"{flag} needs --device cpu or cuda: each rank takes a device of its own, and --device is {settings.device!r}"
        )
    refuse_without_torch(name, flag)


def leading_backend(settings: ModelServiceSettings, name: str, *, exact: bool, ranks: LocalRanks) -> LeadingBackend:
    """Load rank 0's part of a model, together with the other ranks."""
    from slipstream.engine.torch.parallel.backend import LeadingBackend

    ranks.open_store()
    if settings.dtype == "bfloat16":
        warm_choosing(np.int16)
    part, group = _load(settings, name, exact, ranks.place)
    backend = LeadingBackend(part, group)
    ranks.end_others = backend.end
    return backend


def follow(settings: ModelServiceSettings, name: str, exact: bool, place: Place) -> None:
    """Load the part of a rank other than 0, and compute with it until rank 0 ends."""
    from slipstream.engine.torch.parallel.backend import follow

    resume_collection()
    part, group = _load(settings, name, exact, place)
    leave_signals_to_rank_0()
    freeze_live_objects()
    follow(part, group)


def _load(settings: ModelServiceSettings, name: str, exact: bool, place: Place) -> tuple[Backend, RankGroup]:
    import torch

    from slipstream.engine.torch.parallel.loading import load_part
    from slipstream.engine.torch.parallel.rank_group import RankGroup

    if settings.device == "cuda" and torch.cuda.device_count() < place.local_size:
        raise UnsupportedModelError(
            f"--tensor-parallel-size {place.size} needs {place.local_size} CUDA devices here, "
            f"but torch {torch.__version__} finds {torch.cuda.device_count()}"
        )
    threads = settings.threads or default_threads(place.local_size)
    torch.set_num_threads(threads)
    choose_with(threads)
    meeting = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    log.info("rank %d of %d waits for the others at %s:%s", place.rank, place.size, *meeting)
    group = RankGroup.join(device=settings.device, start_timeout=_START_SECONDS, step_timeout=_STEP_SECONDS)
    log.info("loading part %d of %d of %s as %s on %s", place.rank, place.size, name, settings.dtype, group.device)
    part = load_part(
        name, group, dtype=settings.dtype, page_size=settings.page_size, exact=exact, trust=settings.trust()
    )
    return part, group
