"""Metrics of the drafts, by the fingerprints of their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from orchestrator.rounds.draft_figures import DraftFigures
from orchestrator.rounds.drafts import Drafts
from orchestrator.sessions.turns.statistics import per_position
from slipstream.telemetry import instruments
from slipstream.telemetry.metrics import Reading, reading

SHOWN_DIGITS = 8
"""Digits of a draft's fingerprint in a label."""


def draft_readings(drafts: Drafts) -> Iterator[Reading]:
    """Yield what came of the hints of each draft that is known. May be called from any thread."""
    figures: dict[str, DraftFigures] = {}
    shares: dict[tuple[str, ...], float] = {}
    trial = drafts.trial
    for side in drafts.sides:
        if side.info is not None:
            label = side.info.weights_fingerprint[:SHOWN_DIGITS]
            figures.setdefault(label, DraftFigures()).merge(side.figures)
            if trial is not None and side.name == trial.name:
                shares[label,] = trial.share
    drafted: Counter[tuple[str, ...]] = Counter()
    accepted: Counter[tuple[str, ...]] = Counter()
    for label, each in figures.items():
        for position, count in enumerate(per_position(each.drafted_lengths)):
            drafted[label, str(position)] = count
            accepted[label, str(position)] = 0
        for position, count in enumerate(per_position(each.accepted_lengths)):
            accepted[label, str(position)] = count
    yield reading(instruments.DRAFT_HINT_TOKENS_PER_POS, drafted)
    yield reading(instruments.DRAFT_HINT_ACCEPTED_PER_POS, accepted)
    yield reading(instruments.DRAFT_TURN_TOKENS, {(label,): each.speed.numerator for label, each in figures.items()})
    yield reading(instruments.DRAFT_TURN_SECONDS, {(label,): each.speed.denominator for label, each in figures.items()})
    yield reading(instruments.DRAFT_TRIAL_SHARE, shares)
