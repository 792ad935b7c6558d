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
    least_tokens: int
    epochs: int
    learning_rate: float
    swap_turns: int
    asks_the_same: bool
    """True to ask the same again after the swap, and False to ask about names that were never
    collected."""


FULL = Scale(
    hours_of_last_week=3,
    hours_of_yesterday=6,
    hours_of_new_requests=3,
    usual_turns=60,
    new_turns=400,
    least_tokens=1000,
    epochs=12,
    learning_rate=5e-4,
    swap_turns=60,
    asks_the_same=False,
)
SMALL = Scale(
    hours_of_last_week=2,
    hours_of_yesterday=2,
    hours_of_new_requests=1,
    usual_turns=24,
    new_turns=64,
    least_tokens=200,
    epochs=20,
    learning_rate=1e-3,
    swap_turns=8,
    asks_the_same=True,
)
