"""A model's forward on a CPU, captured: the same operations on the same bits, without Python
between them.

A step of a 1.6 M-parameter draft takes 0.93 ms through its modules, and half of this is Python.
Recorded as a graph of the same operations, and replayed without any optimisation, it takes 0.47 ms.
Eight rows of a 488 M-parameter target take 0.83 of their time through the modules. No bit may
change. So a capture is made only if the recording met no data-dependent branch. It is trusted only
after it has given the modules' own bits on later inputs.

torch's tracer is deprecated in favour of compilers. Those need a C++ toolchain at run time, and
replaying an FX graph from Python gains nothing (0.88 ms).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.jit import optimized_execution  # type: ignore[attr-defined]
from torch.jit._trace import TracerWarning

from slipstream.engine.torch.plan import SMALL_STEP, AttentionGroup, StepPlan

log = logging.getLogger(__name__)

Forward = Callable[[StepPlan], torch.Tensor]
_Key = tuple[int, int, int, int, bool]

MAX_PARAMETERS = 1_000_000_000
"""Largest captured model. Above it arithmetic dwarfs dispatch, and a recording takes seconds: about
ten forwards, during part of which other jobs wait."""

_USES_BEFORE_CAPTURE = 2
_NO_SLOT = torch.tensor(-1)
_TRIALS = 2
SETTLED_AFTER = _USES_BEFORE_CAPTURE + 1 + _TRIALS
"""Forwards of one shape after which its time has settled."""

_MAX_CAPTURES = 48
"""Most captures. Each takes 12 MiB for the embedded target and 20 to 34 MiB for a target of 17
layers, because a graph records where each operation was met."""


@dataclass(slots=True)
class _Capture:
    replays: list[Callable[..., torch.Tensor]]
    """Forms of the same operations, the fastest first. A form that does not run is dropped."""
    trials_left: int = _TRIALS


class CapturedForward:
    """Calls ``forward``, or its recording for shapes that come again. One thread at a time may use
    it."""

    def __init__(self, forward: Forward, weights: Sequence[torch.Tensor] = ()) -> None:
        """``weights``: tensors that a recording cannot hold and gets in each call, such as packed
        ones."""
        self._forward = forward
        self._weights = weights
        self._use_counts: dict[_Key, int] = {}
        self._captures: dict[_Key, _Capture] = {}
        self._enabled = True

    def __call__(self, plan: StepPlan) -> torch.Tensor:
        """Return the logits at all the plan's logit rows, including padding."""
        key = self._key(plan)
        if key is None:
            return self._forward(plan)
        capture = self._captures.get(key)
        if capture is None:
            self._count(key, plan)
            return self._forward(plan)
        logits = self._replay(capture, plan)
        if logits is None:
            return self._forward(plan)
        if capture.trials_left:
            capture.trials_left -= 1
            expected = self._forward(plan)
            if not torch.equal(logits, expected):
                log.warning("a captured forward differs from the model's own: captures are off")
                self._captures.clear()
                self._enabled = False
                return expected
        return logits

    def _replay(self, capture: _Capture, plan: StepPlan) -> torch.Tensor | None:
        """Run the recording. None if no form of it runs; then all captures end."""
        while capture.replays:
            try:
                with optimized_execution(False):
                    return capture.replays[0](*_inputs(plan), *self._weights)
            except RuntimeError as error:  # the static runtime gets some types of a bfloat16 mixture of experts wrong
                log.info("a form of a captured forward does not run: %s", str(error).splitlines()[0])
                del capture.replays[0]
        self._captures.clear()
        self._enabled = False
        return None

    def _key(self, plan: StepPlan) -> _Key | None:
        """Return the shape that a recording depends on; None for a plan that is not worth one."""
        rows = plan.slots.shape[0]
        if not self._enabled or rows > SMALL_STEP or len(plan.groups) != 1 or not plan.groups[0].contiguous:
            return None
        logit_rows = plan.logit_rows.shape[0]
        if logit_rows not in (1, rows):  # a target's prefill wants few rows; each shape comes seldom
            return None
        group = plan.groups[0]
        return rows, logit_rows, group.key_count, group.query_positions.shape[1], group.first_slot is not None

    def _count(self, key: _Key, plan: StepPlan) -> None:
        self._use_counts[key] = self._use_counts.get(key, 0) + 1
        if self._use_counts[key] > _USES_BEFORE_CAPTURE and len(self._captures) < _MAX_CAPTURES:
            replays = self._record(plan)
            if replays:
                self._captures[key] = _Capture(replays)

    def _record(self, plan: StepPlan) -> list[Callable[..., torch.Tensor]]:
        given, size = plan.groups[0], plan.page_size

        def run(
            input_ids: torch.Tensor,
            positions: torch.Tensor,
            slots: torch.Tensor,
            logit_rows: torch.Tensor,
            table: torch.Tensor,
            query_positions: torch.Tensor,
            first_slot: torch.Tensor,
            *_: torch.Tensor,
        ) -> torch.Tensor:
            nothing = slots.new_empty(0)
            start = None if given.first_slot is None else first_slot
            group = AttentionGroup(
                1, nothing, nothing, table, query_positions, given.key_count, True, start, given.first_keys
            )
            return self._forward(StepPlan(input_ids, positions, slots, logit_rows, 0, [group], size))

        try:
            with warnings.catch_warnings(record=True) as met, optimized_execution(False):
                warnings.simplefilter("always")
                graph = _traced(run, (*_inputs(plan), *self._weights))
            obstacles = [str(warning.message) for warning in met if issubclass(warning.category, TracerWarning)]
            if not obstacles:
                return _simplified(graph, single_row=plan.slots.shape[0] == 1)
        except (AttributeError, RuntimeError) as error:  # these are torch's internals, not its public interface
            obstacles = [str(error)]
        log.info("forwards are not captured: %s", obstacles[0].splitlines()[0])
        self._enabled = False
        return []


def _traced(run: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> torch.Graph:
    """Return the graph that ``torch.jit.trace`` would record. That function would keep each
    recording as long as the process lives. It would also look up the names of all values in
    Python's frames, which takes as long as the rest."""
    graph: torch.Graph = torch._C._create_graph_by_tracing(run, inputs, lambda value: "", True, False)[0]
    return graph


def _simplified(graph: torch.Graph, *, single_row: bool) -> list[Callable[..., torch.Tensor]]:
    """Return forms of the recording, the fastest first, without two thirds of its nodes: sizes and
    what is computed from them, which the key fixes.

    A draft's step then takes 0.41 ms instead of 0.45, and a target's 6.1 instead of 6.4. With one
    row an operation is little more than its call, and torch's static runtime saves another tenth.
    The operations on tensors are the same ones; the trials would show a difference.
    """
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_peephole(graph, False)
    torch._C._jit_pass_constant_propagation(graph)
    torch._C._jit_pass_dce(graph)
    replays: list[Callable[..., torch.Tensor]] = [torch._C._create_function_from_graph("forward", graph.copy())]
    if single_row:
        replays.insert(0, torch._C._jit_to_static_module(graph))
    return replays


def _inputs(plan: StepPlan) -> tuple[torch.Tensor, ...]:
    group = plan.groups[0]
    start = _NO_SLOT if group.first_slot is None else group.first_slot
    return plan.input_ids, plan.positions, plan.slots, plan.logit_rows, group.table, group.query_positions, start
