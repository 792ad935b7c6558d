"""The protocol of a backend, which the engine drives: it knows a model, keeps the KV of pages, and
turns appended tokens into logits.

A page is what the KV of sequences is counted, shared and copied in. A backend whose attention reads
pages has many small ones (`slipstream.engine.torch`); to one that keeps each sequence's KV in a
piece, that is a page (`slipstream.engine.llamacpp`).
"""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.sequence import PageCopy
from slipstream.engine.stop_flag import StopFlag
from slipstream.processors import Processors
from slipstream.sampling.blocks import BlockedLogits, Logits
from slipstream.sampling.row import Choice
from slipstream.sampling.rule import LengthDefaults, SamplingDefaults, SamplingRule


class Segment(NamedTuple):
    """Tokens appended to one sequence: they take positions ``start`` to
    ``start + len(tokens) - 1``.

    ``pages`` covers all of them. Logits are wanted at the last ``wanted`` tokens.
    """

    tokens: TokenSequence[int]
    start: int
    pages: TokenSequence[int]
    wanted: int

    @property
    def end(self) -> int:
        """The sequence's length after them."""
        return self.start + len(self.tokens)


class ModelFacts(Protocol):
    """Public facts about a model."""

    architecture: str
    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    length_defaults: LengthDefaults
    dtype: str
    weights_fingerprint: str
    """Two models with the same one answer alike, given the same dtype and kind of device."""

    @property
    def device(self) -> object:
        """The device that computes the model, such as "cpu" or a torch.device. Its str names it."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """KV memory: ``page_count`` pages, numbered from 1, of ``page_size`` tokens."""

    page_count: int
    page_size: int
    byte_count: int


class MultiStepRunner(Protocol):
    """Computes several steps in one call."""

    def run(
        self,
        segments: list[Segment],
        rules: TokenSequence[SamplingRule],
        count: int,
        stop_flag: StopFlag,
        *,
        drafting: bool,
        kept: list[BlockedLogits] | None = None,
    ) -> list[list[Choice]]:
        """Return the choices ``[segments]`` of each of up to ``count`` steps, at least two: a
        draft's own if ``drafting``. Each follows its rule and is appended for the next step.

        ``kept``, if it is given, gets each step's logits ``[segments, vocabulary]``.

        There are fewer steps once the ``stop_flag`` is set, which is read after each step; once
        every sequence has had one of its end tokens; or where logits are not finite. There may be
        none: the caller then runs a single step. All tokens but the last have pages, and each rule
        fulfils `needs_logits_only`."""


class Backend(Protocol):
    """A model and its KV memory. Belongs to one thread at a time."""

    @property
    def model(self) -> ModelFacts:
        """The model that it computes."""

    mark: str
    """Four hexadecimal digits: a hash of all that affects the logits' bits besides the model."""

    row_multiple: int
    """A step costs as much as its rows rounded up to a multiple of this."""

    pads_sequences: bool
    """True if each sequence's rows are rounded up to ``row_multiple`` by themselves, and those of
    each other count are a forward of their own."""

    single_rows: bool
    """True if forwards mostly have one row, as a draft's do. A profile and a warm-up then measure
    such forwards."""

    hidden_states: HiddenStates | None
    """The hidden states of forwards, for heads; None if the backend does not give them."""

    multi_step: bool
    """True if several steps may follow one another without a look at the queue."""

    multi_step_runner: MultiStepRunner | None
    """A runner that computes several steps in one call, if there is one."""

    processors: Processors
    """Processors that compute a forward, as far as the backend can tell."""

    warmed_lengths: tuple[int, ...]
    """Lengths of sequences, rising, from which on forwards take other shapes than before."""

    settled_after: int
    """Forwards of one shape, from the first, after which another one takes as long as it will."""

    def reserve(self, memory_mib: float) -> Reserved:
        """Reserve KV memory. UnsupportedModelError if it holds no page."""

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy whole pages, in order."""

    def erase_pages(self, pages: list[int]) -> None:
        """Overwrite pages whose contents cannot be trusted, so that they reach no later result.
        Raises the device's error at once if it cannot compute any more."""

    def forward(self, segments: list[Segment]) -> Logits | BlockedLogits:
        """Logits ``[rows, vocabulary]`` at the segments' wanted rows, one segment after another; in
        blocks, where it has looked for their maxima itself. The next forward may overwrite them."""
