"""Places of a target and a draft on devices, and the sessions that fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream.planning.devices import Group
from slipstream.planning.steps import Assumptions, PlannedModel, Site

PAGE = 16
"""Tokens of a page of KV memory."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft that are to be placed."""

    target: PlannedModel
    draft: PlannedModel
    context: int
    """Tokens of each session."""
    assumed: Assumptions

    def session_bytes(self, model: PlannedModel, rank_count: int = 1) -> float:
        """Return the KV bytes of one session on each rank, in whole pages."""
        kept = model.shape.kv_values_kept(rank_count) * model.format.kv_bytes
        return math.ceil(self.context / PAGE) * PAGE * kept


@dataclass(frozen=True, slots=True)
class Placement:
    """A target on some devices, and a draft on one of its own or on the target's first."""

    target: Site
    draft: Site
    is_shared: bool
    session_count: int
    """Sessions whose KV fits; 0 if not even the weights fit."""
    target_room: float
    """Bytes for KV on the device that has the least of them; below 0 if the weights do not fit."""
    draft_room: float

    def __str__(self) -> str:
        target = f"{self.target.rank_count} x {self.target.device.name}"
        return f"{target}, shared" if self.is_shared else f"{target} + 1 x {self.draft.device.name}"


def rank_counts(model: PlannedModel, group: Group) -> Sequence[int]:
    """Return the numbers of ranks that divide the heads of keys and values, as far as there are
    devices. Processors of a machine are one rank."""
    most = 1 if group.device.is_cpu else min(group.count, model.shape.kv_head_count)
    heads = math.gcd(model.shape.kv_head_count, model.shape.head_count)
    return [count for count in range(1, most + 1) if heads % count == 0]


def placements(pair: Pair, groups: Sequence[Group]) -> list[Placement]:
    """Return all places, the fewest ranks first."""
    found = [
        each
        for group in groups
        for ranks in rank_counts(pair.target, group)
        for each in _of(pair, groups, group, ranks)
    ]
    return sorted(found, key=lambda placement: placement.target.rank_count)


def fastest(pair: Pair, found: Sequence[Placement], session_count: int, *, is_shared: bool) -> Placement | None:
    """Return the place that holds so many sessions and has the shortest steps; None if none holds
    them."""

    def seconds(placement: Placement) -> tuple[float, float]:
        sites = placement.target, placement.draft
        target, draft = [site.step_seconds(session_count, session_count, pair.context, pair.assumed) for site in sites]
        return target, draft

    able = [each for each in found if each.is_shared == is_shared and each.session_count >= session_count]
    return min(able, key=seconds, default=None)


def _of(pair: Pair, groups: Sequence[Group], group: Group, ranks: int) -> Iterator[Placement]:
    target = Site(pair.target, group.device, ranks)
    yield _shared(pair, target)
    for other in groups:
        if other.count - (ranks if other is group else 0) >= 1:
            yield _apart(pair, target, Site(pair.draft, other.device))


def _shared(pair: Pair, target: Site) -> Placement:
    draft = Site(pair.draft, target.device)
    room = _room(pair, target)
    first = room - pair.draft.rank_bytes(1) - pair.assumed.workspace_bytes
    for_target, for_draft = pair.session_bytes(pair.target, target.rank_count), pair.session_bytes(pair.draft)
    count = _count(first, for_target + for_draft)
    if target.rank_count > 1:
        count = min(count, _count(room, for_target))
    return Placement(target, draft, True, count, first, first)


def _apart(pair: Pair, target: Site, draft: Site) -> Placement:
    rooms = _room(pair, target), _room(pair, draft)
    needs = pair.session_bytes(pair.target, target.rank_count), pair.session_bytes(pair.draft)
    count = min(_count(room, need) for room, need in zip(rooms, needs, strict=True))
    return Placement(target, draft, False, count, *rooms)


def _room(pair: Pair, site: Site) -> float:
    """Return the bytes that one rank's weights leave for KV."""
    memory = site.device.memory * pair.assumed.memory_share
    return memory - site.model.rank_bytes(site.rank_count) - pair.assumed.workspace_bytes


def _count(room: float, need: float) -> int:
    return max(0, math.floor(room / need))
