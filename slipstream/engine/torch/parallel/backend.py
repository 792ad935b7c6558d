"""The backend of rank 0, which has every rank compute its part, and the loop of the other ranks."""

from __future__ import annotations

import hashlib

from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.model import Backend, ModelFacts, MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import MIB
from slipstream.engine.sequence import PageCopy
from slipstream.engine.torch.parallel import calls
from slipstream.engine.torch.parallel.calls import Call, Kind
from slipstream.engine.torch.parallel.rank_group import RankGroup
from slipstream.engine.torch.row_trial import see_rows_alone
from slipstream.sampling.blocks import BlockedLogits, Logits


class LeadingBackend:
    """`Backend` of a group's rank 0. Each call goes to the other ranks first. Every rank then
    computes its part of it."""

    hidden_states: HiddenStates | None = None
    multi_step_runner: MultiStepRunner | None = None

    def __init__(self, part: Backend, group: RankGroup) -> None:
        """``part`` is rank 0's own, from `load_part`."""
        self._part, self._group = part, group
        self.mark = hashlib.sha256(f"{part.mark} ranks={group.size}".encode()).hexdigest()[:4]
        self.row_multiple, self.pads_sequences = part.row_multiple, part.pads_sequences
        self.single_rows, self.multi_step = part.single_rows, part.multi_step
        self.processors = part.processors
        self.warmed_lengths, self.settled_after = part.warmed_lengths, part.settled_after

    @property
    def model(self) -> ModelFacts:
        """The whole model's facts."""
        return self._part.model

    def reserve(self, memory_mib: float) -> Reserved:
        """Reserve KV memory of ``memory_mib`` on each rank. UnsupportedModelError if it holds no
        page, or if a trial shows that a row's bits depend on the rows beside it."""
        byte_count = int(memory_mib * MIB)
        with self._group.in_step():
            calls.send(self._group, Call(Kind.RESERVE, [byte_count]))
            reserved = _reserve(self._part, self._group, byte_count)
        if not self.single_rows:
            see_rows_alone(self, reserved, "try another --tensor-parallel-size or --dtype")
        return reserved

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Copy whole pages on all ranks, in order."""
        if copies:
            with self._group.in_step():
                calls.send(self._group, Call(Kind.COPY_PAGES, calls.numbers_of_copies(copies)))
                self._part.copy_pages(copies)

    def erase_pages(self, pages: list[int]) -> None:
        """Erase pages on all ranks. RankGroupError if the group has ended."""
        with self._group.in_step():
            calls.send(self._group, Call(Kind.ERASE_PAGES, pages))
            self._part.erase_pages(pages)

    def forward(self, segments: list[Segment]) -> Logits | BlockedLogits:
        """Return the whole model's logits. RankGroupError if a rank is gone or does not answer."""
        with self._group.in_step():
            calls.send(self._group, Call(Kind.FORWARD, calls.numbers_of_segments(segments)))
            return self._part.forward(segments)

    def end(self) -> None:
        """Let the other ranks end. RankGroupError if the group has ended before."""
        with self._group.in_step():
            calls.send(self._group, Call(Kind.END, []))


def follow(part: Backend, group: RankGroup) -> None:
    """Compute this rank's part of each call of rank 0, until rank 0 ends. RankGroupError if rank 0
    or another rank is gone."""
    while True:
        with group.in_step():
            kind, numbers = calls.receive(group)
            if kind == Kind.END:
                return
            if kind == Kind.RESERVE:
                _reserve(part, group, numbers[0])
            elif kind == Kind.COPY_PAGES:
                part.copy_pages(calls.copies_of(numbers))
            elif kind == Kind.ERASE_PAGES:
                part.erase_pages(numbers)
            else:
                part.forward(calls.segments_of(numbers))


def _reserve(part: Backend, group: RankGroup, byte_count: int) -> Reserved:
    reserved = part.reserve(byte_count / MIB)
    return Reserved(group.minimum(reserved.page_count), reserved.page_size, reserved.byte_count)
