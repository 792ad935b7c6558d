"""The plan of one step: a ragged batch laid out as one row of tokens, with the data that attention
needs.

::

    segments   | A: 6 new tokens | B: 1 | C: 300 (a prefill chunk) | padding to a multiple of 8 |
    rows       0                 6      7                        307                          312

Batch invariance on the CPU, measured with torch 2.13 in fp32 and bf16, rests on three paddings
(BATCH_INVARIANT):

- a linear layer's row has the same bits for every row count that is a multiple of 8: rows are
  padded to one;
- attention has the same bits for every query count that is a multiple of 8: queries are padded to
  one;
- attention walks its keys in blocks of 512 and a partial block may be summed in another order: the
  keys of a segment are attended to as a first block of 128 and what follows, padded to a multiple
  of 512, masked.

A draft only guesses, so it needs no batch invariance (TIGHT): one row stays one row, which halves a
small draft's step. Several rows are padded there too, so that there are few shapes to record
(`slipstream.engine.torch.capture`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from slipstream.engine.model import Segment
from slipstream.engine.pages import PADDING_PAGE
from slipstream.engine.pretrained.windows import WHOLE, Sight

SMALL_STEP = 64
"""Most rows of a step that is mostly overhead."""


@dataclass(frozen=True, slots=True)
class Padding:
    """The multiples to which a step's rows and queries, and each segment's keys, are padded.

    With ``first_keys``, that many keys are attended to separately, and only the keys after them are
    padded to the multiple. A short sequence then pays for few keys. With ``single_row``, a step of
    one row is not padded, nor are the queries of each of several segments.
    """

    row_multiple: int
    key_multiple: int
    first_keys: int = 0
    single_row: bool = False

    def rows(self, count: int) -> int:
        """Return the padded count of a step's ``count`` rows."""
        return count if count == 1 and self.single_row else _round_up(count, self.row_multiple)

    def queries(self, count: int) -> int:
        """Return the padded count of ``count`` queries of one of several segments."""
        return count if self.single_row else _round_up(count, self.row_multiple)

    def logit_rows(self, wanted: int, row_count: int) -> int:
        """Return the padded count of ``wanted`` logits. A small step that wants many gets those of
        all rows, so that it has few shapes."""
        count = self.queries(wanted)
        return row_count if self.row_multiple < count and row_count <= SMALL_STEP else count

    def keys(self, count: int) -> int:
        """Return the padded count of ``count`` keys."""
        return self.first_keys + _round_up(max(0, count - self.first_keys), self.key_multiple)

    @property
    def mark(self) -> str:
        """Four hexadecimal digits that differ between padding rules, because each rule sums in its
        own order."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:4]


KEY_BLOCK = 512
"""Keys that the CPU's attention kernel takes at a time."""

_KEYS_AT_ONCE = 4 * KEY_BLOCK
"""Most keys gathered for one attention call. More would leave the processor's cache, and each
call's memory would come fresh from the system. 16 sequences attended at once took 99 ms for a
forward of the embedded target, four at a time 27."""

FIRST_KEYS = 128
"""Keys in the first block, and so the largest page."""

BATCH_INVARIANT = Padding(row_multiple=8, key_multiple=KEY_BLOCK, first_keys=FIRST_KEYS)
TIGHT = Padding(row_multiple=8, key_multiple=128, single_row=True)


@dataclass(slots=True)
class AttentionGroup:
    """A few segments with equal padded query and key counts, attended to in one call.

    ``rows`` int64 ``[batch * queries]`` picks each query's row (padding picks row 0), and ``real``
    picks the queries that are not padding. Both are empty if ``contiguous``. ``table`` is int64
    ``[batch * pages]``; ``query_positions`` int64 ``[batch, queries]``. With ``contiguous`` the
    queries are exactly all rows in order, because the step has one segment. With a ``first_slot``
    (int64, no dimensions, in CPU memory) the keys lie in a row from there, and nothing is gathered.
    Keys after the segment's own are masked.
    """

    batch: int
    rows: torch.Tensor
    real: torch.Tensor
    table: torch.Tensor
    query_positions: torch.Tensor
    key_count: int
    contiguous: bool
    first_slot: torch.Tensor | None = None
    first_keys: int = 0
    _masks: dict[tuple[range, Sight, int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    _unseen: dict[tuple[Sight, int], torch.Tensor] = field(default_factory=dict)
    _tables: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget masks: the query positions have changed."""
        self._masks.clear()
        self._unseen.clear()

    def tables(self, heads: int, page_count: int) -> torch.Tensor:
        """Return `head_tables` of the group, flat."""
        known = (heads, page_count)
        if known not in self._tables:
            self._tables[known] = head_tables(self.table.view(self.batch, -1), heads, page_count).flatten()
        return self._tables[known]

    @property
    def spans(self) -> list[range]:
        """The ranges of keys that are attended to separately."""
        if 0 < self.first_keys < self.key_count:
            return [range(self.first_keys), range(self.first_keys, self.key_count)]
        return [range(self.key_count)]

    def mask(self, keys: range, sight: Sight, repeats: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive causal mask ``[batch, 1, repeats * queries, keys]``. A query sees its
        own key and, as far as ``sight`` goes, those before it."""
        known = (keys, sight, repeats, dtype)
        if known not in self._masks:
            queries = self.query_positions.unsqueeze(-1)
            positions = torch.arange(keys.start, keys.stop, device=queries.device)
            hidden = positions > queries
            if sight != WHOLE:
                hidden |= positions < sight.first_keys(queries)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=queries.device).masked_fill_(hidden, -torch.inf)
            self._masks[known] = (mask if repeats == 1 else mask.repeat(1, repeats, 1)).unsqueeze(1)
        return self._masks[known]

    def unseen(self, sight: Sight, repeats: int) -> torch.Tensor:
        """Return float32 ``[batch, 1, repeats * queries, spans]``: -inf for a span that a query
        does not see, otherwise 0."""
        if (sight, repeats) not in self._unseen:
            queries, first = self.query_positions, self.first_keys
            unseen = torch.zeros(*queries.shape, len(self.spans), device=queries.device)
            if len(self.spans) > 1:
                unseen[..., 1].masked_fill_(queries < first, -torch.inf)
                unseen[..., 0].masked_fill_(sight.first_keys(queries) >= first, -torch.inf)
            self._unseen[sight, repeats] = unseen.repeat(1, repeats, 1).unsqueeze(1)
        return self._unseen[sight, repeats]


def head_tables(table: torch.Tensor, heads: int, page_count: int) -> torch.Tensor:
    """Return int64 ``[batch, heads, pages]``: the pages of ``table`` ``[batch, pages]`` for each
    head. The memory has all ``page_count`` pages of one head before those of the next."""
    firsts = torch.arange(0, heads * page_count, page_count, device=table.device)
    return table.unsqueeze(1) + firsts.unsqueeze(-1)


@dataclass(slots=True)
class StepPlan:
    """One forward: int64 ``input_ids`` and ``positions`` ``[1, rows]``, ``slots`` ``[rows]`` of
    each row's KV, and padded ``logit_rows``, of which the first ``logit_count`` count."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    logit_count: int
    groups: list[AttentionGroup]
    page_size: int


def build_plan(
    segments: list[Segment], page_size: int, device: torch.device, padding: Padding, slot_count: int = 0
) -> StepPlan:
    """Lay out a batch. ``page_size`` must divide the padding's key multiple. ``slot_count`` is the
    memory's size."""
    rows = _Rows.from_segments(segments, page_size)
    row_count = padding.rows(len(rows.input_ids))
    padded = [0] * (row_count - len(rows.input_ids))
    groups = _layouts(segments, row_count, page_size, padding, slot_count)
    integers = [
        rows.input_ids + padded,
        rows.positions + padded,
        rows.slots + [PADDING_PAGE * page_size] * len(padded),
        rows.wanted + [0] * (padding.logit_rows(len(rows.wanted), row_count) - len(rows.wanted)),
    ]
    for group in groups:
        integers += group.rows, group.real, group.table, group.query_positions
    tensors = iter(_tensors(integers, device))
    return StepPlan(
        input_ids=next(tensors).unsqueeze(0),
        positions=next(tensors).unsqueeze(0),
        slots=next(tensors),
        logit_rows=next(tensors),
        logit_count=len(rows.wanted),
        groups=[group.in_tensors(tensors, padding) for group in groups],
        page_size=page_size,
    )


class _Rows(NamedTuple):
    """A step's rows without padding, as integers. Lists are used because most segments have few
    tokens: arrays would cost more than all the rest."""

    input_ids: list[int]
    positions: list[int]
    slots: list[int]
    wanted: list[int]
    """Rows whose logits are wanted."""

    @classmethod
    def from_segments(cls, segments: list[Segment], page_size: int) -> _Rows:
        rows = cls([], [], [], [])
        for segment in segments:
            at = range(segment.start, segment.start + len(segment.tokens))
            rows.input_ids.extend(segment.tokens)
            rows.positions.extend(at)
            rows.slots.extend(segment.pages[place // page_size] * page_size + place % page_size for place in at)
            end = len(rows.input_ids)
            rows.wanted.extend(range(end - segment.wanted, end))
        return rows


def _layouts(
    segments: list[Segment], row_count: int, page_size: int, padding: Padding, slot_count: int
) -> list[_Layout]:
    """Group the segments that one attention call can compute together."""
    alone = len(segments) == 1
    shapes: dict[tuple[int, int, int], list[tuple[Segment, int]]] = defaultdict(list)
    row = 0
    for segment in segments:
        count = len(segment.tokens)
        end = segment.start + count
        key_count = padding.keys(end)
        # Several sequences' keys gathered into one call are faster than as many calls on keys in
        # place (docs/history/log.md), and a gather of few keys is no slower. So short sequences
        # have one shape, wherever their pages are.
        first_slot = -1
        if alone and key_count > FIRST_KEYS:
            first_slot = _first_slot(segment.pages[: -(-end // page_size)], page_size)
        if first_slot + key_count > slot_count:
            first_slot = -1
        query_count = row_count if alone else padding.queries(count)
        shapes[query_count, key_count, first_slot].append((segment, row))
        row += count
    return [
        _Layout.from_segments(part, query_count, key_count, first_slot, page_size, contiguous=alone)
        for (query_count, key_count, first_slot), members in shapes.items()
        for part in _parts(members, max(1, _KEYS_AT_ONCE // key_count))
    ]


def _first_slot(pages: TokenSequence[int], page_size: int) -> int:
    """Return the first slot of a segment's keys if they lie in a row, and -1 otherwise."""
    if pages[-1] - pages[0] != len(pages) - 1 or [*pages] != [*range(pages[0], pages[-1] + 1)]:
        return -1
    return pages[0] * page_size


def _parts(members: list[tuple[Segment, int]], size: int) -> list[list[tuple[Segment, int]]]:
    return [members[start : start + size] for start in range(0, len(members), size)]


class _Layout(NamedTuple):
    """An `AttentionGroup` as integers. ``first_slot`` is -1 if keys are gathered."""

    batch: int
    rows: list[int]
    real: list[int]
    table: list[int]
    query_positions: list[int]
    key_count: int
    contiguous: bool
    first_slot: int

    @classmethod
    def from_segments(
        cls,
        members: list[tuple[Segment, int]],
        query_count: int,
        key_count: int,
        first_slot: int,
        page_size: int,
        *,
        contiguous: bool,
    ) -> _Layout:
        """Lay out segments, each given with its first row."""
        table: list[int] = []
        positions: list[int] = []
        for segment, _ in members:
            count = len(segment.tokens)
            end = segment.start + count
            positions += range(segment.start, end)
            positions += [0] * (query_count - count)
            if first_slot < 0:
                pages = segment.pages[: -(-end // page_size)]
                table += pages
                table += [PADDING_PAGE] * (key_count // page_size - len(pages))
        # With one session, the common case, nothing is picked, so nothing is computed for it.
        rows, real = ([], []) if contiguous else _picks(members, query_count)
        return cls(len(members), rows, real, table, positions, key_count, contiguous, first_slot)

    def in_tensors(self, parts: Iterator[torch.Tensor], padding: Padding) -> AttentionGroup:
        """Return the group made of the next ``parts``: its rows, real queries, table and
        positions."""
        return AttentionGroup(
            batch=self.batch,
            rows=next(parts),
            real=next(parts),
            table=next(parts),
            query_positions=next(parts).view(self.batch, -1),
            key_count=self.key_count,
            contiguous=self.contiguous,
            first_slot=None if self.first_slot < 0 else torch.from_numpy(np.array(self.first_slot)),
            first_keys=padding.first_keys,
        )


def _picks(members: list[tuple[Segment, int]], query_count: int) -> tuple[list[int], list[int]]:
    """Return each query's row (padding picks row 0), and the indices of the queries that are not
    padding."""
    rows = [0] * (len(members) * query_count)
    real: list[int] = []
    for index, (segment, first_row) in enumerate(members):
        at, count = index * query_count, len(segment.tokens)
        rows[at : at + count] = range(first_row, first_row + count)
        real += range(at, at + count)
    return rows, real


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _tensors(lists: list[list[int]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the lists as parts of one tensor. One copy to a device takes as long as the copy of
    each part alone."""
    together = _tensor([*itertools.chain.from_iterable(lists)], device)
    return torch.split(together, [len(values) for values in lists])


def _tensor(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)  # numpy takes a third of the time
