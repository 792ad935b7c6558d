"""Heads: what guesses the next tokens from the target's hidden states, and what it may read.

The engine holds integers only. So hidden states stay between a backend, which keeps those of its
last forward, and the heads, which answer with tokens and their odds. Both are read on the model
thread between two forwards.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from typing import NamedTuple, Protocol

from slipstream.engine.sequence import PageCopy
from slipstream.sampling.kernel import Floats32
from slipstream.sampling.rule import SamplingRule


class HiddenStates(Protocol):
    """The hidden states of a backend's last forward, in this machine's memory.

    Rows are in the order of the segments; rows of padding may follow. To keep them changes no bit
    of the logits.
    """

    hidden_size: int
    layer_count: int

    def tap(self, layers: TokenSequence[int] = ()) -> None:
        """Keep the states of each forward from now on, and the inputs of these layers, from 0 to
        ``layer_count - 1`` and rising: the residual stream before the layer's norm. Called once,
        before the first forward. UnsupportedModelError if they cannot be read."""

    def last(self) -> Floats32:
        """Return ``[logit rows, hidden size]``: the last hidden states after the final norm, at the
        rows whose logits were wanted. The next forward may overwrite them."""

    def tapped(self) -> Floats32:
        """Return ``[rows, layers * hidden size]``: the inputs of the tapped layers, at all rows.
        The next forward may overwrite them."""


class Settled(NamedTuple):
    """The result of a step for one sequence: its segment of the last forward, once the target has
    chosen.

    Wrong hint tokens are among the segment's rows, but not among the ``row_count`` settled ones.
    Their tokens are ``tokens[start : start + row_count]``. ``tokens`` has at least one token more:
    what the target has chosen last, or what follows in the prompt.
    """

    first_row: int
    """The segment's first row among all rows of the forward."""
    row_count: int
    """Rows whose tokens are part of the text, from the first on."""
    logit_row: int
    """The last settled row's place among the rows of logits; below 0 if it is not among them."""
    start: int
    """Position of the first row's token."""
    pages: TokenSequence[int]
    """Pages of the sequence: they cover at least the settled rows."""
    tokens: TokenSequence[int]
    """All tokens of the text that are known."""
    rule: SamplingRule
    """The rule by which the target chooses."""
    most: int
    """Most tokens to guess after ``tokens``. 0: the heads only take note of the rows."""


class Guess(NamedTuple):
    """Tokens that may come next, and the odds that each and all before it are right. Both are empty
    if nothing is guessed."""

    tokens: tuple[int, ...] = ()
    survivals: tuple[float, ...] = ()


class HiddenHeads(Protocol):
    """Heads of a target. A guess is a hint: it may be wrong, and its bits may depend on the
    batch."""

    kind: str
    """Such as "medusa"."""

    source_id: int
    """Id of the weights, of 64 bits."""

    reads_all_rows: bool
    """True if the heads have to hear of each settled row, and not only of those to guess after."""

    def reserve(self, page_count: int, page_size: int) -> int:
        """Reserve what the heads keep for pages 1 to ``page_count``. Returns its bytes."""

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy what the heads keep for whole pages, in order."""

    def guess(self, settled: TokenSequence[Settled]) -> list[Guess]:
        """Return a guess for each sequence. What they raise ends the heads, and no run."""
