"""Numbers of a model that decide about its memory and its steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of a model by the place where they are. Each number counts parameters."""

    embedding: int
    head: int
    """Output matrix; 0 if it is the embedding."""
    dense: int
    """Matrices that every token goes through, without the head."""
    experts: int
    """Matrices of all routed experts."""
    small: int
    """Norms, biases, sinks and routers, which no format quantises."""
    six_bit: int = 0
    """Parameters of ``dense`` and ``experts`` in value and down projections. Q4_K_M keeps half of
    them in six bits."""

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.head + self.dense + self.experts + self.small


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Attention layers of one kind."""

    layer_count: int
    values_per_token: int
    """Entries of a token's keys and values in one layer."""
    window: int | None = None
    """Most tokens that a query sees; None for all."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model."""

    name: str
    family: str
    """transformers' model type, or a GGUF file's architecture."""
    source: str
    """Origin of the numbers: a file, or the shapes in the package."""
    weights: Weights
    layers: Sequence[KvLayers]
    kv_head_count: int
    head_count: int
    hidden_size: int
    query_size: int
    """Entries of all query heads of one layer."""
    vocabulary_size: int
    context_length: int
    format: str
    """Format of the weights as they are stored, by its name in `slipstream.planning.formats`."""
    expert_count: int = 0
    experts_per_token: int = 0
    is_divided: bool = False
    """True if Slipstream's own engine divides it among ranks. Otherwise a stock engine has to."""
    latent_values: int = 0
    """Entries of a token's latent vectors in all layers (MLA). A stock engine keeps them, whole on
    each rank, in place of keys and values."""
    file_bytes: int | None = None
    """Bytes of the weights in a file that is given; None where a format says it."""

    @property
    def layer_count(self) -> int:
        """Number of attention layers."""
        return sum(layers.layer_count for layers in self.layers)

    @property
    def kv_values_per_token(self) -> int:
        """Entries of a token's keys and values in all layers. The engine keeps those past a
        sliding window too."""
        return sum(layers.layer_count * layers.values_per_token for layers in self.layers)

    def kv_values_read(self, context: int, rank_count: int = 1) -> float:
        """Return the entries of keys and values that one step of a sequence reads on each rank."""
        if self.keeps_latent(rank_count):
            return self.latent_values * context
        return (
            sum(
                layers.layer_count * layers.values_per_token * min(context, layers.window or context)
                for layers in self.layers
            )
            / rank_count
        )

    def kv_values_kept(self, rank_count: int) -> float:
        """Return the entries of a token's keys and values that each rank keeps."""
        return self.latent_values if self.keeps_latent(rank_count) else self.kv_values_per_token / rank_count

    def keeps_latent(self, rank_count: int) -> bool:
        """Return whether ranks keep latent vectors: those of a stock engine do."""
        return bool(self.latent_values) and rank_count > 1 and not self.is_divided

    def expert_share(self, row_count: int) -> float:
        """Return the expected share of the experts that some row of a step is routed to. Rows are
        taken to choose independently."""
        if not self.expert_count:
            return 1.0
        return 1 - (1 - self.experts_per_token / self.expert_count) ** row_count
