"""The calls that rank 0 makes on all ranks, as integers.

::

    first message    | kind | count of all numbers | numbers ...       | 0 ... |
    second message   | the numbers that the first has no room for              |

    numbers of a forward, for each segment:
    | start | wanted | count of tokens | count of pages | tokens ... | pages ... |
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from slipstream.engine.model import Segment
from slipstream.engine.sequence import PageCopy
from slipstream.engine.torch.parallel.rank_group import RankGroup

_FIRST = 256
"""Numbers of the first message. A step of a few sequences fits into it."""


class Kind(IntEnum):
    """Kinds of calls."""

    END = 0
    RESERVE = 1
    COPY_PAGES = 2
    ERASE_PAGES = 3
    FORWARD = 4


class Call(NamedTuple):
    """A kind, and its numbers: bytes, pairs of pages, pages, or segments."""

    kind: Kind
    numbers: list[int]


def send(group: RankGroup, call: Call) -> None:
    """Send a call of rank 0 to the other ranks."""
    room = _FIRST - 2
    first = [call.kind, len(call.numbers), *call.numbers[:room]]
    group.send(torch.tensor(first + [0] * (_FIRST - len(first))))
    if len(call.numbers) > room:
        group.send(torch.tensor(call.numbers[room:]))


def receive(group: RankGroup) -> Call:
    """Return the next call of rank 0. RankGroupError if it is gone."""
    kind, count, *numbers = group.receive(_FIRST).tolist()
    if count > len(numbers):
        numbers += group.receive(count - len(numbers)).tolist()
    return Call(Kind(kind), numbers[:count])


def numbers_of_copies(copies: Sequence[PageCopy]) -> list[int]:
    """Return the pages of copies: source, destination, and so on."""
    return [page for copy in copies for page in (copy.source, copy.destination)]


def copies_of(numbers: Sequence[int]) -> list[PageCopy]:
    """Return the copies of `numbers_of_copies`."""
    return [PageCopy(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


def numbers_of_segments(segments: Sequence[Segment]) -> list[int]:
    """Return a forward's segments as numbers."""
    numbers: list[int] = []
    for tokens, start, pages, wanted in segments:
        numbers += (start, wanted, len(tokens), len(pages), *tokens, *pages)
    return numbers


def segments_of(numbers: Sequence[int]) -> list[Segment]:
    """Return the segments of `numbers_of_segments`."""
    segments: list[Segment] = []
    at = 0
    while at < len(numbers):
        start, wanted, token_count, page_count = numbers[at : at + 4]
        tokens = at + 4
        pages = tokens + token_count
        at = pages + page_count
        segments.append(Segment(numbers[tokens:pages], start, numbers[pages:at], wanted))
    return segments
