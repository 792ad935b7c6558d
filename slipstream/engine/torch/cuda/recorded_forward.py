"""Forwards as CUDA graphs: the same kernels on the same addresses, without Python between them.

A forward of 32 layers launches over a thousand kernels, and Python takes longer to ask for one than
the device to run it. A step's integers and its logits lie in memory of their own, so a graph
recorded once is replayed for every step of as many rows: 8 B parameters in 8.4 ms instead of 25.
Nothing here may change a bit: a recording is trusted only after it has given the modules' own bits
on later inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from slipstream.engine.torch.cuda.step import Step

log = logging.getLogger(__name__)

_EAGER_USES = 2
"""Before a recording: kernels are compiled and chosen in them, which a recording cannot do."""

_TRIALS = 2

SETTLED_AFTER = _EAGER_USES + 1 + _TRIALS
"""Forwards of one row count after which it takes as long as it will."""


_INTEGERS = {2: torch.int16, 4: torch.int32}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are the same; also what is no number."""
    integers = _INTEGERS[one.element_size()]
    return torch.equal(one.view(integers), other.view(integers))


class RecordedForward:
    """Computes one step's logits ``[rows, vocabulary]``, by a recording as soon as there is one.
    Belongs to one thread."""

    def __init__(self, compute: Callable[[Step], torch.Tensor], step: Step) -> None:
        self.step = step
        self._compute = compute
        self._may_record = step.slots.device.type == "cuda"
        self._eager_uses_left = _EAGER_USES
        self._trials = _TRIALS
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: torch.Tensor

    def __call__(self) -> torch.Tensor:
        """Of what the step has taken last. The logits are overwritten by the next call."""
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
        except RuntimeError as error:  # a forward that looks at what it has computed
            log.info("forwards are not recorded: %s", str(error).splitlines()[0])

    def _try(self) -> None:
        expected = self._compute(self.step)
        if not same_bits(self._logits, expected):
            log.warning("a recorded forward differs from the model's own: it is not used")
            self._graph, self._logits = None, expected
