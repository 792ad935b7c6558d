"""Forwards as CUDA graphs: the same kernels on the same addresses, without Python between them.

A forward of 32 layers launches over a thousand kernels, and Python takes longer to launch one than
the device to run it. A step's integers and its logits have their own memory. So a graph that was
recorded once is replayed for every step of the same row count: 8 B parameters take 8.4 ms instead
of 25. No bit may change: a recording is trusted only after it has given the modules' own bits on
later inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from slipstream.engine.torch.cuda.step import Step

log = logging.getLogger(__name__)

_EAGER_USES = 2
"""Uses before a recording. Kernels are compiled and chosen in them, which a recording cannot do."""

_TRIALS = 2

SETTLED_AFTER = _EAGER_USES + 1 + _TRIALS
"""Forwards of one row count after which its time has settled."""


_INTEGERS = {2: torch.int16, 4: torch.int32}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors of one dtype and shape are equal, NaN included."""
    integers = _INTEGERS[one.element_size()]
    return torch.equal(one.view(integers), other.view(integers))


class RecordedForward:
    """Computes one step's logits ``[rows, vocabulary]``, by a recording as soon as there is one.
    One thread at a time may use it."""

    def __init__(self, compute: Callable[[Step], torch.Tensor], step: Step, *, may_record: bool = True) -> None:
        """``may_record`` is False if every forward must go through the modules."""
        self.step = step
        self._compute = compute
        self._may_record = may_record and step.slots.device.type == "cuda"
        self._eager_uses_left = _EAGER_USES
        self._trials = _TRIALS
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: torch.Tensor

    def __call__(self) -> torch.Tensor:
        """Compute the step that was laid out last. The next call overwrites the logits."""
        if self._may_record:
            if not self._eager_uses_left:
                self._record()
            self._eager_uses_left -= 1
        if self._graph is None:
            return self._compute(self.step)
        self._graph.replay()
        if self._trials:
            self._trials -= 1
            self._try()
        return self._logits

    def _record(self) -> None:
        self._may_record = False
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._logits = self._compute(self.step)
            self._graph = graph
        except RuntimeError as error:  # a forward that reads its own results on the host
            log.info("forwards are not recorded: %s", str(error).splitlines()[0])

    def _try(self) -> None:
        expected = self._compute(self.step)
        if not same_bits(self._logits, expected):
            log.warning("a recorded forward differs from the model's own: it is not used")
            self._graph, self._logits = None, expected
