"""Which of a turn's rounds are kept to be looked at: those whose peers have made spans, those that
failed, the slowest, and those in which the least was accepted. Pure."""

from __future__ import annotations

from orchestrator.rounds.note import RoundNote


class SampledRounds:
    """The rounds of one turn, most of them forgotten again if there are many."""

    def __init__(self, most: int) -> None:
        """At most ``most`` of those that have no spans elsewhere, and twice as many in between."""
        self.count = 0
        """Of all rounds."""
        self._most = most
        self._pinned: list[RoundNote] = []
        self._others: list[RoundNote] = []

    def add(self, note: RoundNote) -> None:
        """A round has ended."""
        self.count += 1
        if note.trace_prefix:
            self._pinned.append(note)
            return
        self._others.append(note)
        if len(self._others) >= 2 * self._most:
            self._others = _worth_seeing(self._others, self._most)

    def settle(self) -> None:
        """No other follows: keep no more than what is worth seeing."""
        self._others = _worth_seeing(self._others, self._most)

    @property
    def kept_count(self) -> int:
        """Rounds that are kept."""
        return len(self._pinned) + len(self._others)

    @property
    def pinned_count(self) -> int:
        """Rounds whose peers have made spans."""
        return len(self._pinned)

    def best(self, most: int) -> list[RoundNote]:
        """In order of time, all that are pinned and at most ``most`` of the others."""
        return sorted(self._pinned + _worth_seeing(self._others, most), key=lambda note: note.number)


def _worth_seeing(notes: list[RoundNote], most: int) -> list[RoundNote]:
    """Failed ones first; then half of the rest by time, half by acceptance."""
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
    """Of equal shares the one of more tokens is the worse."""
    return note.accepted / note.drafted, -note.drafted
