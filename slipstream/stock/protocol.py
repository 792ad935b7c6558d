"""The protocol of a stock engine: what the verifier asks a running server, in tokens.

A position's row is partial: the likeliest tokens with their log-probabilities, and those of the
token ids that were asked for. `slipstream.sampling.partial` decides from them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.sampling.partial.known import PartialRow, Wanted


class EngineLostError(SlipstreamError):
    """The stock engine's server cannot be reached, or it fails. It may come back."""

    reason = Reason.ENGINE_LOST
    retry_after = 1.0


class EngineRefusedError(SlipstreamError):
    """The stock engine's server refuses a request, or its answer cannot be used."""

    reason = Reason.BAD_RESULT


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
    most_ids: int
    """Most token ids whose log-probabilities can be asked for beside them; 0: none."""
    lacks: tuple[str, ...] = ()
    """Abilities that the server does not have and that would help, each as a few words."""


class Ask(NamedTuple):
    """A question: the rows after ``tokens`` and after each token of ``hint``."""

    tokens: Sequence[int]
    """At least one token."""
    hint: Sequence[int] = ()
    wanted: Wanted = Wanted(2)
    """Tokens that each row has to list. Ids come only from an engine that can be asked for ids."""
    scored: int = 0
    """Number of the last ``tokens`` whose own log-probabilities are wanted."""


class StockRow(NamedTuple):
    """One position, as the server tells it."""

    token: int
    """The token that the engine itself chooses at temperature 0."""
    known: PartialRow
    """Log-probabilities of some tokens."""


class Answer(NamedTuple):
    """The answer to an `Ask`."""

    rows: list[StockRow]
    """``1 + len(hint)`` rows."""
    scores: list[PartialRow]
    """A row for each scored token, which is listed itself."""


class StockEngine(Protocol):
    """A running server. It belongs to one event loop. Calls may overlap: the server batches.

    All calls raise EngineLostError if the server cannot be reached or fails, and EngineRefusedError
    if it refuses the request.
    """

    async def connect(self) -> StockFacts:
        """Ask the server what it is. It is called again after the server was lost.
        UnsupportedModelError if it lacks what is needed."""

    async def score(self, ask: Ask) -> Answer:
        """Return the rows that were asked for."""

    def continue_greedily(self, tokens: Sequence[int], count: int, likeliest: int) -> AsyncIterator[StockRow]:
        """Yield up to ``count`` rows, each after the ``tokens`` and the `StockRow.token` of all
        rows before, as the server computes them. It may end early. Closing the iterator ends the
        request."""

    async def close(self) -> None:
        """Close all connections."""
