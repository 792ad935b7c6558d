"""Figures of a draft: what came of its hints, turn by turn. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.peers.run_parts import Part, Step
from orchestrator.speculation.proposal import Source
from slipstream.ratio_sums import RatioSums


@dataclass(slots=True)
class DraftFigures:
    """Figures of one draft over all its sessions."""

    session_count: int = 0
    """Sessions that it was given."""
    turn_count: int = 0
    token_count: int = 0
    acceptance: RatioSums = field(default_factory=RatioSums)
    """Accepted draft tokens over verified ones."""
    speed: RatioSums = field(default_factory=RatioSums)
    """Tokens after the first ones over their seconds."""
    step_length: RatioSums = field(default_factory=RatioSums)
    """Tokens over the target's steps."""
    drafted_lengths: Counter[int] = field(default_factory=Counter)
    """Verified hints by their length."""
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    """The same by the number of their tokens that were accepted."""

    def record_turn(self, turn: TurnFigures) -> None:
        """Record a turn that has ended. One without tokens says nothing."""
        if not turn.token_count:
            return
        self.turn_count += 1
        self.token_count += turn.token_count
        self.acceptance = self.acceptance.plus(RatioSums.of_turn(turn.accepted_count, turn.drafted_count))
        self.speed = self.speed.plus(RatioSums.of_turn(turn.later_count, turn.seconds))
        self.step_length = self.step_length.plus(RatioSums.of_turn(turn.token_count, turn.step_count))
        self.drafted_lengths.update(turn.drafted_lengths)
        self.accepted_lengths.update(turn.accepted_lengths)

    def merge(self, other: DraftFigures) -> None:
        """Add the figures of another service."""
        self.session_count += other.session_count
        self.turn_count += other.turn_count
        self.token_count += other.token_count
        self.acceptance = self.acceptance.plus(other.acceptance)
        self.speed = self.speed.plus(other.speed)
        self.step_length = self.step_length.plus(other.step_length)
        self.drafted_lengths.update(dict(other.drafted_lengths))  # a copy: metrics are read in another thread
        self.accepted_lengths.update(dict(other.accepted_lengths))


@dataclass(slots=True)
class TurnFigures:
    """Figures of one turn of a session."""

    token_count: int = 0
    step_count: int = 0
    drafted_count: int = 0
    accepted_count: int = 0
    later_count: int = 0
    """Tokens after those of the first part, which has the prompt's time in it."""
    seconds: float = 0.0
    """Time that these took."""
    drafted_lengths: Counter[int] = field(default_factory=Counter)
    accepted_lengths: Counter[int] = field(default_factory=Counter)

    def record_part(self, part: Part) -> None:
        """Record a part of the turn's run."""
        if self.token_count:
            self.later_count += len(part.tokens)
            self.seconds += part.timing.round_trip
        self.token_count += len(part.tokens)
        self.step_count += sum([1 if step.hint_count else step.token_count for step in part.steps])

    def record_step(self, step: Step) -> None:
        """Record a step that verified a hint of the draft."""
        self.drafted_count += step.hint_count
        self.accepted_count += step.accepted_count
        self.drafted_lengths[step.hint_count] += 1
        self.accepted_lengths[step.accepted_count] += 1


def is_of(step: Step, source_id: int | None) -> bool:
    """Return whether a step verified a hint of the draft with this id."""
    return step.source is Source.DRAFT and step.source_id == source_id
