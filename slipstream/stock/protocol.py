"""The protocol of a stock engine: what the verifier asks a running server, in tokens.

A position's row is partial: the likeliest tokens with their log-probabilities, and those of the
token ids that were asked for. `slipstream.sampling.partial` decides from them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slipstream.errors import FieldViolation, SlipstreamError
from slipstream.reasons import Reason
from slipstream.sampling.partial.known import PartialRow, Wanted


class EngineLostError(SlipstreamError):
    """The stock engine's server cannot be reached, or it fails. It may come back."""

    reason = Reason.ENGINE_LOST
    retry_after = 1.0


class EngineRefusedError(SlipstreamError):
    """The stock engine's server refuses a request, or its answer cannot be used."""

    reason = Reason.ENGINE_REFUSED


class SamplingUnsupportedError(SlipstreamError):
    """A sampling rule needs more than a stock engine tells: each field by name, with the reason."""

    reason = Reason.SAMPLING_UNSUPPORTED

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{each.field} {each.description}" for each in violations), violations)


@dataclass(frozen=True, slots=True)
class StockFacts:
    """Facts that a server tells about itself and its model."""

    engine: str
    """Name and version for people, such as "vLLM 0.32.0"."""
    model: str
    """Name by which requests name the model."""
    context_length: int
    """Longest sequence in tokens, the chosen ones included."""
    most_likeliest: int
    """Most of the likeliest tokens that a row can have."""
    most_ids: int = 0
    """Most token ids whose log-probabilities can be asked for; 0: none."""
    tells_best_id: bool = False
    """True if an answer tells, of the ids asked for, the likeliest one alone. It bounds the
    others."""
    lacks: tuple[str, ...] = ()
    """Abilities that the server does not have and that would help, each as a few words."""


class Ask(NamedTuple):
    """A question: the rows after ``tokens`` and after each token of ``hint``."""

    tokens: Sequence[int]
    """At least one token."""
    hint: Sequence[int]
    wanted: Wanted
    """Tokens that each row has to list. An engine that tells the best id alone caps the others."""


class StockRow(NamedTuple):
    """One position, as the server tells it."""

    token: int
    """The token that the engine itself chooses at temperature 0."""
    known: PartialRow
    """Log-probabilities of some tokens."""


class StockEngine(Protocol):
    """A running server. It belongs to one event loop. Calls may overlap: the server batches.

    All calls raise EngineLostError if the server cannot be reached or fails, and EngineRefusedError
    if it refuses the request or its answer cannot be used.
    """

    async def connect(self) -> StockFacts:
        """Ask the server for its facts. This is called again after the server was lost.
        UnsupportedModelError if the server lacks what is needed, or serves another model."""

    async def score(self, ask: Ask) -> list[StockRow]:
        """Return the ``1 + len(hint)`` rows that were asked for."""

    async def score_tail(self, tokens: Sequence[int], count: int, likeliest: int) -> list[PartialRow]:
        """Return the rows at which the last ``count`` tokens came. Each lists its token and the
        likeliest ones."""

    def continue_greedily(self, tokens: Sequence[int], count: int, likeliest: int) -> AsyncGenerator[StockRow]:
        """Yield up to ``count`` rows, each after the ``tokens`` and the `StockRow.token` of all
        rows before, as the server computes them. It may end early. Closing the iterator ends the
        request."""

    def lost_count(self) -> int:
        """Return how many connections the server has closed between two requests so far. After
        each, another server may answer."""

    async def close(self) -> None:
        """Close all connections."""
