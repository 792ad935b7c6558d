"""Statistics of a turn: counts of its rounds, and where its time went. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.rounds.result import RoundResult
from orchestrator.speculation.proposal import Source


@dataclass(slots=True)
class TurnStatistics:
    """Counts of a turn's rounds and tokens; times are in seconds."""

    round_count: int = 0
    draft_count: int = 0
    draft_token_count: int = 0
    accepted_token_count: int = 0
    speculative_token_count: int = 0
    """Committed by rounds with a proposal."""
    ngram_token_count: int = 0
    ngram_accepted_token_count: int = 0
    prediction_token_count: int = 0
    prediction_accepted_token_count: int = 0
    heads_token_count: int = 0
    heads_accepted_token_count: int = 0
    draft_lengths: Counter[int] = field(default_factory=Counter)
    """Rounds by the number of draft tokens verified, if there were any."""
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    """The same rounds by the number of draft tokens accepted."""
    switched_off_count: int = 0
    draft_failure_count: int = 0
    absent_source: Source | None = None
    """The only maker of hints that the turn asked for, if its peers have none."""
    time_to_first_token: float = 0.0
    total: float = 0.0
    draft: float = 0.0
    draft_hidden: float = 0.0
    verify: float = 0.0
    admission: float = 0.0
    """Wait for the admission permit."""
    queue: float = 0.0
    """Wait in the peers' queues and for the admission permit."""
    network: float = 0.0

    @property
    def orchestrator(self) -> float:
        """The time that neither the peers nor the network account for."""
        return max(0.0, self.total - self.draft - self.verify - self.queue - self.network)

    @property
    def drafted_per_position(self) -> list[int]:
        """Draft tokens verified, by position in the proposal."""
        return per_position(self.draft_lengths)

    @property
    def accepted_per_position(self) -> list[int]:
        """Draft tokens accepted, by position in the proposal."""
        accepted = per_position(self.accepted_lengths)
        return accepted + [0] * (max(self.draft_lengths, default=0) - len(accepted))

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens that a round with a proposal committed; 0 without such a round."""
        return self.speculative_token_count / self.draft_count if self.draft_count else 0.0

    def add(self, outcome: RoundResult, committed: int) -> None:
        """Count one round, of which the turn committed so many tokens."""
        self.round_count += 1
        self.draft_failure_count += outcome.draft_failed
        self.switched_off_count += outcome.switched_off
        self.verify += outcome.verify.forward
        self.queue += outcome.verify.total - outcome.verify.forward
        self.network += outcome.verify.round_trip - outcome.verify.total
        self._add_drafting(outcome)
        drafted, accepted = outcome.counted(committed)
        if not outcome.proposal_length:
            return
        self.draft_count += 1
        self.draft_token_count += drafted
        self.accepted_token_count += accepted
        self.speculative_token_count += committed
        if outcome.source is Source.NGRAM:
            self.ngram_token_count += drafted
            self.ngram_accepted_token_count += accepted
        if outcome.source is Source.PREDICTION:
            self.prediction_token_count += drafted
            self.prediction_accepted_token_count += accepted
        if outcome.source is Source.HEADS:
            self.heads_token_count += drafted
            self.heads_accepted_token_count += accepted
        self.draft_lengths[drafted] += 1
        self.accepted_lengths[accepted] += 1

    def _add_drafting(self, outcome: RoundResult) -> None:
        """Divide the round's wait for the draft: its forwards first, then its queue, then the
        network."""
        timing, waited = outcome.awaited, outcome.waited
        shown = queued = 0.0
        if timing is not None:
            shown = min(waited, timing.forward)
            queued = min(waited - shown, timing.total - timing.forward)
        self.draft += shown
        self.queue += queued
        self.network += waited - shown - queued
        self.draft_hidden += max(0.0, sum(timing.forward for timing in outcome.drafted) - shown)


def per_position(lengths: Mapping[int, int]) -> list[int]:
    """Return how many rounds reach each position, from the number of rounds of each length."""
    counts = [0] * max(lengths, default=0)
    for length, count in lengths.items():
        if length:
            counts[length - 1] += count
    for position in range(len(counts) - 2, -1, -1):
        counts[position] += counts[position + 1]
    return counts
