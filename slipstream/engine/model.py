"""What the engine drives: a backend. It knows a model, keeps the KV of pages, and turns appended
tokens into logits.

A page is what the KV of sequences is counted, shared and copied in. A backend whose attention reads
pages has many small ones (`slipstream.engine.torch`); to one that keeps each sequence's KV in a
piece, that is a page (`slipstream.engine.llamacpp`).
"""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    """What everybody may know of a model."""

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
        """Where the model is computed, such as "cpu" or a torch.device. Its str names it."""


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
    ) -> list[list[Choice]]:
        """What each of up to ``count`` steps, two at least, chooses ``[segments]`` as a draft, each
        by its rule, each choice appended for the next. Fewer once the ``stop_flag`` is said,
        which is looked at after each step, once every sequence is seen to have had one of its end
        tokens, or where logits are not finite; maybe none, and then a step that chooses alone is
        for it. Pages are there for all but the last; the rules are such that
        `needs_logits_only`."""


class Backend(Protocol):
    """A model and its KV memory. Belongs to one thread at a time."""

    @property
    def model(self) -> ModelFacts:
        """What it computes."""

    mark: str
    """Four hexadecimal digits, of whatever has a part in the logits' bits beside the model
    itself."""

    row_multiple: int
    """What a step's rows cost a multiple of."""

    multi_step: bool
    """Whether steps may follow one another without being asked for, as a draft's do: forwards
    mostly have one row then."""

    multi_step_runner: MultiStepRunner | None
    """Where it can compute several steps in one call."""

    any_thread: bool
    """Whether it is all the same by which thread it is asked. OpenMP makes another team for
    each."""

    processors: Processors
    """That compute a forward, as far as it can tell."""

    warmed_lengths: tuple[int, ...]
    """Lengths of sequences, rising, from which on forwards take other shapes than before."""

    settled_after: int
    """Forwards of one shape, from the first, after which another one takes as long as it will."""

    def reserve(self, memory_mib: float) -> Reserved:
        """Reserve KV memory. UnsupportedModelError if it holds no page."""

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy whole pages, in order."""

    def erase_pages(self, pages: list[int]) -> None:
        """What these pages hold cannot be trusted: it must not reach anything computed from now on.
        Raises what the device raises, at once, if it cannot compute any more."""

    def forward(self, segments: list[Segment]) -> Logits | BlockedLogits:
        """Logits ``[rows, vocabulary]`` at the segments' wanted rows, one segment after another; in
        blocks, where it has looked for their maxima itself. The next forward may overwrite them."""
