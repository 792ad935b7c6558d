"""Counts of an orchestrator since it began, and their differences between two looks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slipstream.cli.words import outcome_of, proposer_of
from slipstream.rpc.wire import seconds
from slipstream.v1 import status_pb2

_NUMBERS = (
    "generated_token_count",
    "prompt_token_count",
    "cached_token_count",
    "draft_token_count",
    "accepted_token_count",
)
_TIMES = ("verify", "verifier_idle", "draft_wait", "verify_queue", "verify_network", "rounds")
_LISTS = ("drafted_per_position_counts", "accepted_per_position_counts")
_ROUNDS = "round_counts"

_PARTS = ("verify", "verify_queue", "verify_network", "draft_wait")
_WITHOUT_TIMES = ("cancelled", "failed")
"""Rounds that are counted and whose times are not."""

OUTCOME, PROPOSER = 1, 2
"""Places in the key of a count of rounds."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums by key: a field of ProcessStatus; such a list and a place in it; or round_counts,
    outcome and proposer. Times are in seconds."""

    sums: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    @classmethod
    def of(cls, status: status_pb2.ProcessStatus) -> Counts:
        """From the wire."""
        sums: dict[tuple[str, ...], float] = {(name,): getattr(status, name) for name in _NUMBERS}
        sums |= {(name,): seconds(getattr(status, name)) for name in _TIMES}
        for name in _LISTS:
            sums |= {(name, str(place)): count for place, count in enumerate(getattr(status, name))}
        for kind in status.round_counts:
            key = (_ROUNDS, outcome_of(kind.outcome), proposer_of(kind))
            sums[key] = sums.get(key, 0) + kind.count
        return cls(sums)

    def __getitem__(self, name: str) -> float:
        return self.sums.get((name,), 0)

    def per_position(self, name: str) -> list[float]:
        """A list's elements."""
        found: list[float] = []
        while (key := (name, str(len(found)))) in self.sums:
            found.append(self.sums[key])
        return found

    def rounds_by(self, place: int) -> dict[str, float]:
        """Rounds by OUTCOME or PROPOSER."""
        sums: dict[str, float] = {}
        for key, count in self.sums.items():
            if key[0] == _ROUNDS:
                sums[key[place]] = sums.get(key[place], 0) + count
        return sums

    @property
    def round_count(self) -> float:
        """Rounds of all kinds."""
        return sum(self.rounds_by(OUTCOME).values())

    @property
    def timed_round_count(self) -> float:
        """Rounds whose times are in the sums."""
        return sum(count for outcome, count in self.rounds_by(OUTCOME).items() if outcome not in _WITHOUT_TIMES)

    @property
    def acceptance(self) -> float | None:
        """Accepted over verified draft tokens; None if there were none."""
        return ratio(self["accepted_token_count"], self["draft_token_count"])

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted draft tokens / drafts, as vLLM defines it; None without a draft."""
        drafts = self.sums.get((_LISTS[0], "0"), 0)  # each has a first token
        accepted = ratio(self["accepted_token_count"], drafts)
        return None if accepted is None else 1 + accepted

    @property
    def position_acceptances(self) -> list[float | None]:
        """By place in the proposal: how often its token was accepted; None where none was
        verified."""
        drafted, accepted = (self.per_position(name) for name in _LISTS)
        accepted += [0.0] * (len(drafted) - len(accepted))
        return [ratio(part, whole) for part, whole in zip(accepted, drafted, strict=False)]

    @property
    def seconds_a_round(self) -> dict[str, float]:
        """Return the parts of a round's time, in seconds; the last is what is left over.

        The idle time is not among them, because part of it lies between rounds. Empty if there was
        no round.
        """
        count = self.timed_round_count
        if not count:
            return {}
        parts = {name: self[name] / count for name in _PARTS}
        return parts | {"rest": max(0.0, self["rounds"] / count - sum(parts.values()))}

    @property
    def idle_a_round(self) -> float | None:
        """Seconds a round that sessions gave their verifier nothing to do; None if there was no
        round."""
        return ratio(self["verifier_idle"], self.timed_round_count)

    def goes_on_from(self, earlier: Counts) -> bool:
        """True if no count has become smaller. Otherwise the process has started again."""
        return all(count <= self.sums.get(key, 0) for key, count in earlier.sums.items())

    def since(self, earlier: Counts) -> Counts:
        """Return what was added since an earlier look."""
        return Counts({key: count - earlier.sums.get(key, 0) for key, count in self.sums.items()})

    def a_second(self, elapsed: float) -> Counts:
        """Return the counts as rates; zeros if no time has passed."""
        return Counts({key: count / elapsed for key, count in self.sums.items()}) if elapsed > 0 else Counts()


def summed(several: Iterable[Counts]) -> Counts:
    """Return the sum of several processes' counts."""
    sums: dict[tuple[str, ...], float] = {}
    for counts in several:
        for key, count in counts.sums.items():
            sums[key] = sums.get(key, 0) + count
    return Counts(sums)


def ratio(part: float, whole: float) -> float | None:
    """Return ``part / whole``; None if ``whole`` is 0."""
    return part / whole if whole else None
