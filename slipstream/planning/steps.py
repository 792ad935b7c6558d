"""Seconds of a step by a roofline: the memory's time or the processor's. Pure.

A step reads all weights and the keys and values of its sequences once. It multiplies each row with
the weights that the row is routed through. The longer of both times counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.planning.devices import Device
from slipstream.planning.formats import Format
from slipstream.planning.shape import ModelShape

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Row counts of a profile."""

_FAST_LINK = 100e9
_FAST_SECONDS, _SLOW_SECONDS = 15e-6, 30e-6


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Numbers that no configuration has."""

    bandwidth_share: float = 0.55
    """Share of the memory's bandwidth that a step reaches: an 8B target on an H200, 6.2 ms."""
    flops_share: float = 0.5
    """Share of the processor's peak that large steps reach."""
    host_seconds: float = 1.6e-3
    """Seconds of a target's step beside the forward. On an H200 a plain round takes 7.8 ms."""
    draft_host_seconds: float = 0.2e-3
    """The same of a draft, whose steps follow one another without the host."""
    memory_share: float = 0.9
    """Share of a device's memory that may be used."""
    workspace_bytes: float = 1.5e9
    """Bytes of each process beside weights and KV: the device's context, graphs and activations."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model in a format."""

    shape: ModelShape
    format: Format

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.format.weight_bytes(self.shape.weights)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return self.shape.kv_values_per_token * self.format.kv_bytes

    def rank_bytes(self, rank_count: int) -> float:
        """Return the bytes of the weights on each rank. Each has norms and biases whole."""
        weights = self.shape.weights
        return self.format.small_bytes(weights) + self.format.matrix_bytes(weights) / rank_count

    def operations(self, row_count: int, context: int) -> float:
        """Return the floating-point operations of a step."""
        shape, weights = self.shape, self.shape.weights
        active: float = weights.dense + (weights.head or weights.embedding)
        if shape.expert_count:
            active += weights.experts * shape.experts_per_token / shape.expert_count
        seen = sum(layers.layer_count * min(context, layers.window or context) for layers in shape.layers)
        return row_count * (2 * active + 4 * shape.query_size * seen)


@dataclass(frozen=True, slots=True)
class Site:
    """A model on devices of one kind."""

    model: PlannedModel
    device: Device
    rank_count: int = 1

    def step_seconds(self, row_count: int, session_count: int, context: int, assumed: Assumptions) -> float:
        """Return the seconds of a forward of rows of some sessions, each of which has so many
        tokens."""
        memory, processor = self._seconds(row_count, session_count, context, assumed)
        return max(memory, processor) + self._collective_seconds(row_count)

    def profile(
        self, session_count: int, context: int, assumed: Assumptions, host_seconds: float, each: float = 1.0
    ) -> tuple[tuple[int, float], ...]:
        """Return row counts and the seconds of whole steps. Each row stands for ``each`` rows."""
        return tuple(
            (rows, self.step_seconds(round(rows * each), session_count, context, assumed) + host_seconds)
            for rows in ROWS
        )

    def is_compute_bound(self, row_count: int, session_count: int, context: int, assumed: Assumptions) -> bool:
        """Return whether a step of so many rows waits for the processor and not for the memory."""
        memory, processor = self._seconds(row_count, session_count, context, assumed)
        return processor > memory

    def _seconds(self, row_count: int, session_count: int, context: int, assumed: Assumptions) -> tuple[float, float]:
        """Return the seconds of the memory and of the processor of one rank."""
        model, shape, ranks = self.model, self.model.shape, self.rank_count
        read = model.format.read_bytes(shape.weights, shape.expert_share(row_count)) / ranks
        kv = min(session_count, row_count) * shape.kv_values_read(context, ranks) * model.format.kv_bytes
        operations = model.operations(row_count, context) / ranks
        return (
            (read + kv) / (self.device.bandwidth * assumed.bandwidth_share),
            operations / (self.device.flops * assumed.flops_share),
        )

    def _collective_seconds(self, row_count: int) -> float:
        """Return the seconds of two sums over all ranks in each layer."""
        if self.rank_count == 1:
            return 0.0
        shape, device = self.model.shape, self.device
        wait = _FAST_SECONDS if device.link >= _FAST_LINK else _SLOW_SECONDS
        moved = 2 * (self.rank_count - 1) / self.rank_count * row_count * shape.hidden_size * 2
        return 2 * shape.layer_count * (wait + moved / device.link)
