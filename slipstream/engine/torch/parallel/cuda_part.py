"""A rank's part of a model on its CUDA device.

This was computed by Triton's interpreter on CPUs, over gloo. It never ran on CUDA devices over
NCCL. Forwards are not recorded as CUDA graphs: ranks would have to agree on each recording and
each trial of one, because a rank that computes once more than another one leaves the group out of
step. So Python launches each kernel, and a step takes longer than on one device with graphs.
"""

from __future__ import annotations

from slipstream.engine.model import Backend
from slipstream.engine.torch.cuda.attention import PAGED, compile_launcher
from slipstream.engine.torch.cuda.backend import DRAFT_ROWS, EXACT_ROWS, CudaBackend
from slipstream.engine.torch.cuda.fusing import fuse
from slipstream.engine.torch.parallel.layers import connect
from slipstream.engine.torch.parallel.loaded import Loaded
from slipstream.engine.torch.parallel.rank_group import RankGroup


def cuda_part(loaded: Loaded, group: RankGroup, *, page_size: int, exact: bool) -> Backend:
    """Return the backend of a rank's part on a CUDA device. UnsupportedModelError if it cannot be
    served."""
    if group.device.type == "cuda":
        compile_launcher()
    fused = fuse(loaded.model)  # before the layers wait for one another: each rank tries its own
    connect(loaded.model, loaded.division, group)
    model = loaded.served(group, kernels=PAGED)
    row_counts = EXACT_ROWS if exact else DRAFT_ROWS
    return CudaBackend(model, page_size=page_size, row_counts=row_counts, fused=fused, may_record=False)
