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
    swap_turns: int
    asks_the_same: bool
    """True to ask the same again after the swap, and False to ask about names that were never
    collected."""


FULL = Scale(
    hours_of_last_week=2,
    hours_of_yesterday=4,
    hours_of_new_requests=2,
    usual_turns=20,
    new_turns=160,
    least_tokens=300,
    epochs=5,
    swap_turns=40,
    asks_the_same=False,
)
SMALL = Scale(
    hours_of_last_week=2,
    hours_of_yesterday=2,
    hours_of_new_requests=1,
    usual_turns=12,
    new_turns=64,
    least_tokens=100,
    epochs=5,
    swap_turns=8,
    asks_the_same=True,
)
