"""The steps that a job remembers for its span."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slipstream.engine.step_note import MOST_NOTES, StepNote, StepSample


@pytest.mark.parametrize("count", [0, 1, MOST_NOTES - 1, MOST_NOTES, MOST_NOTES + 1, 64, 4000])
def test_a_sample_of_steps_is_bounded_and_spread_over_all_of_them(count: int) -> None:
    sample = StepSample()
    for number in range(count):
        sample.add(StepNote(float(number), 0.0, 1, 1, 1, ()))
    kept = [int(note.started) for note in sample.notes]
    assert min(count, MOST_NOTES // 2) <= len(kept) <= MOST_NOTES
    distances = {after - before for before, after in pairwise([*kept, count])}
    assert max(distances, default=1) <= max(1, 2 * count // MOST_NOTES + 1)
    assert kept[:1] == [0][:count]
