"""The drafts that share a target's sessions: a session stays where its KV is, and moves on when its
draft is away.

Which draft proposes never changes a text: what is accepted is what the target says itself. Under
the ratio test it would, so there a session stays with the draft that it has.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from orchestrator.peers.model_info import ModelInfo
from orchestrator.rounds.draft_request import SessionDrafting
from orchestrator.rounds.drafting import DraftSide

log = logging.getLogger(__name__)

_LOPSIDED = 2
"""So many times as many sessions as another draft has, with one more, are too many: one that begins
a turn moves there. It reads its prompt again, a small model's work."""


def place_of(session_id: str) -> float:
    """Return a session's place from 0 to 1, the same in all processes: a hash of its id."""
    digest = hashlib.blake2b(session_id.encode(errors="surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


class TrialShare(NamedTuple):
    """The share of the sessions that a draft on trial gets."""

    name: str
    """Name of the draft's side."""
    share: float
    """From 0 to 1."""

    def allows(self, side: DraftSide, place: float) -> bool:
        """Return whether a session at a ``place`` may draft with a side: within the share it drafts
        with the draft on trial, else with another."""
        return (side.name == self.name) == (place < self.share)


class Drafts:
    """Each draft behind a side of its own. There may be none, and they come and go."""

    def __init__(self, sides: Iterable[DraftSide] = ()) -> None:
        self._sides = {side.address: side for side in sides}
        self._retired: set[str] = set()
        self._has_served = False
        self.trial: TrialShare | None = None
        """The draft on trial, if there is one."""
        self.move_count = 0
        """Sessions that moved because their draft was away."""

    @property
    def sides(self) -> list[DraftSide]:
        """All there are, those included that are being left."""
        return list(self._sides.values())

    @property
    def info(self) -> ModelInfo | None:
        """Facts of the first draft that fits; if none fits, of the first that is known."""
        known = [side for side in self._sides.values() if side.info is not None]
        return next((side.info for side in known if side.fits), known[0].info if known else None)

    @property
    def max_draft_length(self) -> int | None:
        """Most tokens that a request may ask one of them for; None while none fits."""
        return max((side.max_draft_length for side in self._sides.values() if side.fits), default=None)

    @property
    def mismatched(self) -> ModelInfo | None:
        """Facts of a draft of the settings whose tokens are not the target's, if each of those is
        known and no draft ever fitted. An operator's mistake refuses no turn."""
        if self._has_served or any(side.fits for side in self._sides.values()):
            return None
        infos = [side.info for side in self._sides.values() if not side.is_added]
        return infos[0] if infos and None not in infos else None

    def add(self, side: DraftSide) -> None:
        """One more."""
        self._sides[side.address] = side

    def retire(self, address: str) -> None:
        """No session shall live on a draft any more: those that do leave it when they next
        draft."""
        self._retired.add(address)

    def cancel_retirement(self, address: str) -> None:
        """A draft is not to be left, or not any more."""
        self._retired.discard(address)

    def remove_retired(self) -> list[str]:
        """The addresses of the retired ones on which nothing lives any more. They are forgotten."""
        left = [each for each in self._retired if each not in self._sides or not self._sides[each].session_count]
        for address in left:
            self._retired.discard(address)
            self._sides.pop(address, None)
        return left

    def of(self, drafting: SessionDrafting) -> DraftSide | None:
        """The draft that a session lives on, if it does on one."""
        return self._sides.get(drafting.sequence.address or "")

    def fingerprint_of(self, drafting: SessionDrafting) -> str:
        """The fingerprint of the weights of a session's draft; empty if it has none."""
        side = self.of(drafting)
        return "" if side is None or side.info is None else side.info.weights_fingerprint

    def maker_of(self, drafting: SessionDrafting, source_id: int) -> str:
        """The fingerprint of the weights of that draft of a session whose hints have an id; empty
        if none has."""
        for each in (drafting, *drafting.beside):
            if (side := self.of(each)) is not None and side.source_id == source_id:
                return self.fingerprint_of(each)
        return ""

    def home(self, drafting: SessionDrafting, *, begins_turn: bool, stays: bool) -> DraftSide | None:
        """The same for a session that wants to draft: one that has no draft is given the one with
        the fewest; one whose draft is away, or at the beginning of a turn has far more than
        another or is not in its share, moves. One that ``stays``, for the ratio test, moves only
        from a draft that makes no proposals. One whose draft is retired leaves it even if there is
        no other. Whether those are back that are left alone is seen to on the way."""
        current = self.of(drafting)
        kept = [side for side in self._sides.values() if side.address not in self._retired]
        well = [side for side in kept if side.is_well]
        if len(well) < len(self._sides):
            self._visit(current)
        allowed = self._allowed(drafting, well, stays=stays)
        if current is not None and current not in kept and not allowed:
            self._leave(drafting, current)
            current = None
        if current is None:
            allowed = allowed or self._allowed(drafting, [side for side in kept if side.fits], stays=stays)
            return self._settle(drafting, min(allowed, key=attrgetter("session_count"))) if allowed else None
        if not allowed or (stays and current in kept and current.proposes):
            return current
        other = min(allowed, key=attrgetter("session_count"))
        if current not in kept or not current.is_well:
            self.move_count += 1
            log.warning("the draft at %s is away: a session moves to %s", current.address, other.address)
        elif not stays:
            is_lopsided = current.session_count >= _LOPSIDED * (other.session_count + 1)
            if not begins_turn or (current in allowed and not is_lopsided):
                return current
        self._leave(drafting, current)
        return self._settle(drafting, other)

    def _allowed(self, drafting: SessionDrafting, sides: Sequence[DraftSide], *, stays: bool) -> Sequence[DraftSide]:
        """Return the sides that a session may draft with: of several drafts of a session, each has
        other weights. If the draft on trial is away, its share drafts with the others. One that
        ``stays`` asks one draft alone, which makes proposals, and takes no part in a trial."""
        taken = {weights for other in drafting.beside if (weights := self.fingerprint_of(other))}
        if stays:
            sides = [side for side in sides if side.proposes]
        elif taken:
            sides = [side for side in sides if side.info is None or side.info.weights_fingerprint not in taken]
        trial = self.trial
        if trial is None:
            return sides
        others = [side for side in sides if trial.allows(side, 1.0)]
        if stays:
            return others
        return [side for side in sides if trial.allows(side, drafting.place)] or others

    def release(self, drafting: SessionDrafting) -> None:
        """Give a session's pages back. It drafts no more."""
        drafting.released = True
        drafting.leave_request()
        side = self.of(drafting)
        if side is not None:
            side.session_count -= 1
            side.release(drafting)
            drafting.sequence.address = None

    def _visit(self, current: DraftSide | None) -> None:
        for side in self._sides.values():
            if side is not current and side.address not in self._retired:  # a session's own it sees to by itself
                side.visit()

    def _leave(self, drafting: SessionDrafting, side: DraftSide) -> None:
        side.session_count -= 1
        side.leave(drafting)

    def _settle(self, drafting: SessionDrafting, side: DraftSide) -> DraftSide:
        drafting.sequence.address = side.address
        side.session_count += 1
        side.figures.session_count += 1
        self._has_served = True
        return side
