"""Memory for the KV cache: a given size, or what a share of a CUDA device's memory leaves of it."""

from __future__ import annotations

import logging

from slipstream.engine.errors import UnsupportedModelError
from slipstream.hosting.settings import ModelServiceSettings

log = logging.getLogger(__name__)

_MIB = 2**20
_GIB = 2**30


def kv_memory_mib(settings: ModelServiceSettings) -> float:
    """Return the MiB of the KV cache, once the model is loaded. UnsupportedModelError if the share
    of the device's memory is in use already."""
    share = settings.gpu_memory_utilization
    if share is None:
        return settings.kv_memory_mib
    if not settings.device.startswith("cuda"):
        log.info("--gpu-memory-utilization has no effect on %s: --kv-memory-mib sets the KV cache", settings.device)
        return settings.kv_memory_mib
    import torch

    torch.cuda.synchronize(settings.device)
    torch.cuda.empty_cache()  # what loading has freed is in no tensor, but counts as used
    free, total = torch.cuda.mem_get_info(settings.device)
    return room_mib(share, free, total)


def room_mib(share: float, free: int, total: int) -> float:
    """Return the MiB that a share of a device leaves beside what is in use. ``free`` and ``total``
    are the device's bytes. UnsupportedModelError if it leaves nothing."""
    room = share * total - (total - free)
    if room <= 0:
        raise UnsupportedModelError(
            f"--gpu-memory-utilization {share:g} of the device's {total / _GIB:.1f} GiB leaves nothing for the KV cache: "
            f"{(total - free) / _GIB:.1f} GiB are in use once the model is loaded"
        )
    return room / _MIB
