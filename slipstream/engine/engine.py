"""One forward over a ragged batch: append these tokens to these sequences, choose tokens at these rows."""

from __future__ import annotations

import math
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass

from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.model import Model
from slipstream.engine.pages import PagePool
from slipstream.engine.plan import BATCH_INVARIANT, KEY_BLOCK, Padding, Segment, build_plan
from slipstream.engine.sequence import Sequence, SequenceCache
from slipstream.sampling.coupled import Choice, choose
from slipstream.sampling.rule import SamplingRule

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Append:
    """One sequence's part of a step. Its pages are there already (`SequenceCache.extend`).

    ``token_count`` last tokens of the sequence are new; a token is chosen after each of the last ``wanted`` ones.
    """

    sequence: Sequence
    token_count: int
    wanted: int
    rule: SamplingRule


class Engine:
    """A model, its pages and the step that joins them. Belongs to one thread."""

    def __init__(
        self, model: Model, *, kv_memory_mib: float, page_size: int = 16, padding: Padding = BATCH_INVARIANT
    ) -> None:
        """Reserve KV memory. UnsupportedModelError if the page size does not fit or no page does."""
        if KEY_BLOCK % page_size:
            raise UnsupportedModelError(f"page_size must divide {KEY_BLOCK}, but is {page_size}")
        page_count = math.floor(kv_memory_mib * MIB / (model.bytes_per_token * page_size))
        if page_count < 1:
            needed = model.bytes_per_token * page_size / MIB
            raise UnsupportedModelError(f"kv_memory_mib of {kv_memory_mib:g} holds no page; one takes {needed:.2g} MiB")
        self.model = model
        self.page_size = page_size
        self._padding = Padding(padding.row_multiple, max(padding.key_multiple, page_size))
        self.pool = PagePool(page_count)
        self.cache = SequenceCache(self.pool, page_size)
        self.kv_byte_count = model.reserve(page_count, page_size)
        self.context_length = min(model.context_length, page_count * page_size)
        self.step_count = 0

    def step(self, appends: TokenSequence[Append]) -> list[list[Choice]]:
        """One forward; for each append its chosen tokens, ``wanted`` of them."""
        segments = [
            Segment(
                tokens=append.sequence.tokens[len(append.sequence) - append.token_count :],
                start=len(append.sequence) - append.token_count,
                pages=append.sequence.pages,
                wanted=append.wanted,
            )
            for append in appends
        ]
        self.model.copy_pages(self.cache.take_copies())
        plan = build_plan(segments, self.page_size, self.model.device, self._padding)
        logits = self.model.forward(plan)
        self.step_count += 1
        if not plan.logit_count:
            return [[] for _ in appends]
        rules: list[SamplingRule] = []
        positions: list[int] = []
        for append in appends:
            length = len(append.sequence)
            rules.extend([append.rule] * append.wanted)
            positions.extend(range(length - append.wanted + 1, length + 1))
        choices = iter(choose(logits, rules, positions))
        return [[next(choices) for _ in range(append.wanted)] for append in appends]
