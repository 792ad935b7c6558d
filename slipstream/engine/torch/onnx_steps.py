"""A small draft's single-row steps as one onnxruntime program: 0.1 ms a token where torch takes 0.5.

A draft's tokens come one after another, each forward one row of each sequence. Of such a step the embedded draft's arithmetic
takes a tenth of a millisecond; the rest of torch's time goes into calling some eighty operations. onnxruntime has a dozen
fused ones for the same layers. A draft only guesses, so its last bits may be another library's.

The program is for the one shape of decoder that most small models have: RMS norms before attention and before a gated MLP,
rotary positions, linear layers with or without biases. What it says is compared with the model's own logits before it is used;
any other model runs as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import torch

from slipstream.engine.model import Choose
from slipstream.engine.pages import PADDING_PAGE
from slipstream.engine.torch.kv import KvMemory
from slipstream.engine.torch.onnx_graph import DecoderShape, NotPlainError, decoder_graph
from slipstream.engine.torch.plan import StepPlan, head_tables

log = logging.getLogger(__name__)

MAX_PARAMETERS = 64_000_000
"""Above, arithmetic dwarfs what calling operations takes; and the program has weights of its own."""

_KEY_MULTIPLE = 128
MOST_KEYS = 16_384
"""Over all sequences of a run. More would be copied for longer than the steps save."""

_MOST_MEMORIES = 16
"""Batch sizes and key counts whose memory is kept; making one takes less than a step."""

_THREADED_WEIGHTS = 4_000_000
"""Fewer are read from one core's cache, and a second thread would only take a processor from the verifier beside it."""

_PROBE = (3, 17, 5, 101, 64, 2, 33, 7, 250, 11)
_TOLERANCE = 1e-3


class OnnxSteps:
    """The program and its own key and value memory, into which a run copies what it goes on from. Belongs to one thread."""

    def __init__(self, session: Any, shape: DecoderShape) -> None:
        self._session, self._shape = session, shape
        self._memories: dict[tuple[int, int], _Bound] = {}

    def serves(self, plan: StepPlan) -> bool:
        """Whether the plan's sequences are few and short enough."""
        keys = _key_count(plan)
        return keys <= self._shape.longest and keys * len(plan.segments) <= MOST_KEYS

    def run(self, plan: StepPlan, memory: KvMemory, choose: Choose) -> None:
        """`slipstream.engine.torch.planned.PlanModel.run_on`."""
        bound = self._bound(len(plan.segments), _key_count(plan))
        table = _table(plan)
        bound.load(memory, table)
        starts = [segment.start for segment in plan.segments]
        tokens: list[int] | None = [segment.tokens[0] for segment in plan.segments]
        count = 0
        while tokens is not None:
            logits = bound.step(self._session, tokens, [start + count for start in starts])
            count += 1
            tokens = choose(logits)
        bound.store(memory, table, starts, count)

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        """Logits ``[1, vocabulary]`` after ``tokens`` alone."""
        bound = self._bound(1, _KEY_MULTIPLE)
        for position, token in enumerate(tokens):
            logits = bound.step(self._session, [token], [position])
        return logits

    def _bound(self, batch: int, key_count: int) -> _Bound:
        key = batch, key_count
        if key not in self._memories:
            if len(self._memories) == _MOST_MEMORIES:
                del self._memories[next(iter(self._memories))]
            self._memories[key] = _Bound(self._session, self._shape, batch, key_count)
        return self._memories[key]


class _Bound:
    """Inputs, outputs and KV of one batch size and key count, all where the program reads and writes them."""

    def __init__(self, session: Any, shape: DecoderShape, batch: int, key_count: int) -> None:
        sizes = batch, shape.kv_heads, key_count, shape.head_size
        self.keys = [torch.zeros(sizes) for _ in range(shape.layer_count)]
        self.values = [torch.zeros(sizes) for _ in range(shape.layer_count)]
        self._tokens = np.zeros((batch, 1), dtype=np.int64)
        self._positions = np.zeros(batch, dtype=np.int32)
        self._length = np.zeros((), dtype=np.int32)
        self._logits = torch.zeros(batch, shape.vocabulary_size)
        self._binding = session.io_binding()

        def bind(bind_one: Callable[..., None], name: str, array: Any) -> None:
            bind_one(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

        bind(self._binding.bind_input, "tokens", self._tokens)
        bind(self._binding.bind_input, "positions", self._positions)
        bind(self._binding.bind_input, "length", self._length)
        bind(self._binding.bind_output, "logits", self._logits.numpy())
        for index in range(shape.layer_count):
            for name, memory in (("keys", self.keys[index]), ("values", self.values[index])):
                bind(self._binding.bind_input, f"past_{name}.{index}", memory.numpy())
                bind(self._binding.bind_output, f"{name}.{index}", memory.numpy())

    def step(self, session: Any, tokens: list[int], positions: list[int]) -> torch.Tensor:
        """Logits ``[batch, vocabulary]``, overwritten by the next step."""
        self._tokens[:, 0] = tokens
        self._positions[:] = positions
        self._length[()] = max(positions) + 1
        session.run_with_iobinding(self._binding)
        return self._logits

    def load(self, memory: KvMemory, table: torch.Tensor) -> None:
        """Copy the KV of the pages of ``table`` ``[batch, pages]``."""
        rows = head_tables(table, self.keys[0].shape[1], memory.page_count).flatten()
        for ours, pages in zip((*self.keys, *self.values), (*memory.keys, *memory.values), strict=True):
            torch.index_select(pages.flatten(0, 1), 0, rows, out=ours.view(-1, *pages.shape[2:]))

    def store(self, memory: KvMemory, table: torch.Tensor, starts: list[int], count: int) -> None:
        """Copy back what ``count`` steps from ``starts`` on have written."""
        size = memory.keys[0].shape[2]
        for index, start in enumerate(starts):
            new = slice(start, start + count)
            at = np.arange(start, start + count)
            slots = torch.from_numpy(table[index].numpy()[at // size] * size + at % size)
            for ours, pages in zip((*self.keys, *self.values), (*memory.keys, *memory.values), strict=True):
                pages.flatten(1, 2).index_copy_(1, slots, ours[index, :, new])


def _key_count(plan: StepPlan) -> int:
    longest = max(segment.start + 1 + segment.room for segment in plan.segments)
    return -(-longest // _KEY_MULTIPLE) * _KEY_MULTIPLE


def _table(plan: StepPlan) -> torch.Tensor:
    """Int64 ``[segments, pages]``; the padding page where a sequence has none."""
    size = plan.page_size
    table = np.full((len(plan.segments), _key_count(plan) // size), PADDING_PAGE, dtype=np.int64)
    for row, segment in zip(table, plan.segments, strict=True):
        page_count = -(-(segment.start + 1 + segment.room) // size)
        row[:page_count] = segment.pages[:page_count]
    return torch.from_numpy(table)


def build_onnx_steps(model: Any) -> OnnxSteps | None:
    """The program of a small transformers model in float32 on the CPU; None if it is larger, and with a line in the log if it
    has another shape."""
    if model.num_parameters() > MAX_PARAMETERS:
        return None
    try:
        graph, shape = decoder_graph(model)
        steps = OnnxSteps(_session(graph.SerializeToString(), model), shape)
        _compare(steps, model)
    except Exception as reason:  # whatever there is about a model that nobody has tried: torch runs it
        log.info("single-row steps stay with torch: %s", reason)
        return None
    return steps


def _compare(steps: OnnxSteps, model: Any) -> None:
    """Refuse the program if it does not say what the model says."""
    tokens = [token % model.config.vocab_size for token in _PROBE]
    ours = model.config._attn_implementation
    model.set_attn_implementation("sdpa")  # ours needs pages
    try:
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[:, -1]
    finally:
        model.set_attn_implementation(ours)
    furthest = float((steps.logits_after(tokens) - expected).abs().max() / expected.abs().max())
    if not furthest <= _TOLERANCE:
        raise NotPlainError(f"its logits are {furthest:.2g} off, relatively")


def _session(program: bytes, model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    weight_count = sum(weight.numel() for weight in model.parameters())
    options.intra_op_num_threads = 1 if weight_count < _THREADED_WEIGHTS else torch.get_num_threads()
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
