"""Bytes of a model's weights in each format. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.planning.errors import PlanError
from slipstream.planning.shape import ModelShape, Weights


@dataclass(frozen=True, slots=True)
class Format:
    """Bits of a parameter by its place."""

    name: str
    says: str
    embedding: float
    head: float
    dense: float
    experts: float
    small: float
    six_bit: float = 0.0
    """Further bits of a parameter in a value or down projection, on average."""
    tied: float | None = None
    """Bits of an embedding that is the head too; None for those of the embedding."""
    kv_bytes: int = 2

    def weight_bytes(self, weights: Weights) -> float:
        """Return the bytes of all weights."""
        return self.small_bytes(weights) + self.matrix_bytes(weights)

    def read_bytes(self, weights: Weights, expert_share: float) -> float:
        """Return the bytes that a step reads: all but an embedding that is not the head."""
        unread = self._embedding_bytes(weights) if weights.head else 0.0
        return self.weight_bytes(weights) - unread - (1 - expert_share) * self._expert_bytes(weights)

    def small_bytes(self, weights: Weights) -> float:
        """Return the bytes that each rank has whole: norms and biases."""
        return weights.small * self.small / 8

    def matrix_bytes(self, weights: Weights) -> float:
        """Return the bytes that ranks divide: embedding, head and all matrices."""
        dense = weights.dense * (self.dense + self._extra_bits(weights)) + weights.head * self.head
        return self._embedding_bytes(weights) + dense / 8 + self._expert_bytes(weights)

    def _embedding_bytes(self, weights: Weights) -> float:
        bits = self.embedding if self.tied is None or weights.head else self.tied
        return weights.embedding * bits / 8

    def _expert_bytes(self, weights: Weights) -> float:
        return weights.experts * (self.experts + self._extra_bits(weights)) / 8

    def _extra_bits(self, weights: Weights) -> float:
        """Return the further bits of a parameter of layers' matrices, on average."""
        matrices = weights.dense + weights.experts
        return self.six_bit * weights.six_bit / matrices if matrices else 0.0


_GROUP = (16 + 4) / 128
"""Bits of a 16-bit scale and a 4-bit zero point for each 128 weights."""
_BLOCK = 32 / 128**2
"""Bits of a 32-bit scale for each block of 128 x 128 weights."""
_Q6_K = 6.5625

FORMATS = {
    known.name: known
    for known in (
        Format("bfloat16", "16 bits", 16, 16, 16, 16, 16),
        Format("float16", "16 bits", 16, 16, 16, 16, 16),
        Format("float32", "32 bits", 32, 32, 32, 32, 32, kv_bytes=4),
        Format("fp8", "8 bits and a scale for each 128 x 128 block", 16, 16, 8 + _BLOCK, 8 + _BLOCK, 16),
        Format("int4", "AWQ or GPTQ: 4 bits in groups of 128", 16, 16, 4 + _GROUP, 4 + _GROUP, 16),
        Format("mxfp4", "experts in 4 bits and a scale for each 32", 16, 16, 16, 4.25, 16),
        Format("q8_0", "GGUF Q8_0: 8.5 bits", 8.5, 8.5, 8.5, 8.5, 32),
        Format("q4_k_m", "GGUF Q4_K_M", 4.5, _Q6_K, 4.5, 4.5, 32, six_bit=(_Q6_K - 4.5) / 2, tied=_Q6_K),
    )
}
"""Formats by name. Keys and values stay in 16 bits beside quantised weights."""


GGUF_FORMATS = ("gguf", "q8_0", "q4_k_m")
"""Formats of GGUF files."""

STOCK_FORMATS = ("fp8", "int4", "mxfp4")
"""Formats in which only a stock engine computes a target. A draft may have them."""


def format_of(shape: ModelShape, given: str | None, flag: str) -> Format:
    """Return the format of a model's weights: the one given, or else the stored one. PlanError,
    which names the flag, if the model cannot have it."""
    if shape.file_bytes is not None:
        if given is not None:
            raise PlanError(f"{flag} {given}: {shape.name} is a GGUF file, which has its own bits; leave {flag} out")
        bits = 8 * shape.file_bytes / max(1, shape.weights.total)
        return Format("gguf", f"its own file, {bits:.2f} bits on average", bits, bits, bits, bits, bits)
    name = given or shape.format
    if name not in FORMATS:
        raise PlanError(f"{flag} {name} is not known; known are {', '.join(FORMATS)}")
    if name == "mxfp4" and not shape.expert_count:
        raise PlanError(f"{flag} mxfp4 is for models with experts, and {shape.name} has none")
    return FORMATS[name]
