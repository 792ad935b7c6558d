"""The sample of a turn's rounds that traces show. Pure.

It holds rounds whose peers have made spans, failed rounds, the slowest ones, and those in which the
least was accepted.
"""

from __future__ import annotations

from orchestrator.rounds.note import RoundNote


class SampledRounds:
    """A sample of the rounds of one turn."""

    def __init__(self, most: int) -> None:
        """Keep at most ``most`` rounds without spans of peers, and twice as many for a while."""
        self.count = 0
        """Number of all rounds."""
        self._most = most
        self._pinned: list[RoundNote] = []
        self._others: list[RoundNote] = []

    def add(self, note: RoundNote) -> None:
        """Add a round that has ended."""
        self.count += 1
        if note.trace_prefix:
            self._pinned.append(note)
            return
        self._others.append(note)
        if len(self._others) >= 2 * self._most:
            self._others = _worth_seeing(self._others, self._most)

    def settle(self) -> None:
        """Cut the sample to its final size: no other round follows."""
        self._others = _worth_seeing(self._others, self._most)

    @property
    def kept_count(self) -> int:
        """Number of rounds in the sample."""
        return len(self._pinned) + len(self._others)

    @property
    def pinned_count(self) -> int:
        """Number of rounds whose peers have made spans."""
        return len(self._pinned)

    def best(self, most: int) -> list[RoundNote]:
        """Return all rounds with spans of peers, and at most ``most`` others, in order of time."""
        return sorted(self._pinned + _worth_seeing(self._others, most), key=lambda note: note.number)


def _worth_seeing(notes: list[RoundNote], most: int) -> list[RoundNote]:
    """Return failed rounds first; then half of the rest by time, half by acceptance."""
    if len(notes) <= most:
        return notes
    chosen = {note.number: note for note in notes if note.ending is not None}
    slowest = sorted(notes, key=lambda note: note.seconds, reverse=True)
    least = sorted((note for note in notes if note.drafted), key=_acceptance)
    for share, ranked in ((most - most // 2, slowest), (most // 2, least), (most, slowest)):
        wanted = min(most, len(chosen) + share)
        for note in ranked:
            if len(chosen) >= wanted:
                break
            chosen.setdefault(note.number, note)
    return sorted(chosen.values(), key=lambda note: note.number)[-most:] if most else []


def _acceptance(note: RoundNote) -> tuple[float, int]:
    """Return a sort key: of equal rates, more draft tokens are worse."""
    return note.accepted / note.drafted, -note.drafted
