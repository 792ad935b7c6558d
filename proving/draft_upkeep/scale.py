"""The size of a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of turns and passes, and bounds of `slipstream drift`."""

    hours_of_last_week: int
    hours_of_yesterday: int
    hours_of_new_requests: int
    usual_turns: int
    """Turns an hour of each task before the requests change."""
    new_turns: int
    """Turns an hour of the task whose requests have changed."""
    new_names: int
    """Names that it asks about, again and again."""
    least_tokens: int
    epochs: int
    swap_turns: int


FULL = Scale(
    hours_of_last_week=2,
    hours_of_yesterday=6,
    hours_of_new_requests=3,
    usual_turns=20,
    new_turns=200,
    new_names=60,
    least_tokens=300,
    epochs=6,
    swap_turns=60,
)
SMALL = Scale(
    hours_of_last_week=2,
    hours_of_yesterday=2,
    hours_of_new_requests=1,
    usual_turns=12,
    new_turns=64,
    new_names=16,
    least_tokens=100,
    epochs=10,
    swap_turns=24,
)
