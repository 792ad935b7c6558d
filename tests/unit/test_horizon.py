"""A draft guesses past the commits as far as it pays, and prepares other choices of the target."""

from __future__ import annotations

import math

import pytest

from slipstream.engine.hinting.calibration import LEAST_SURVIVAL
from slipstream.engine.hinting.hints import MOST_TOKENS, Source
from slipstream.engine.hinting.horizon import MOST_LINES, PROBE_SHARE, Horizon, Line, Probes, least_survival


def guessed(count: int, odds: float = 0.8, other: float = 0.12) -> Horizon:
    """A base line 10, 11, 12, ... after ten committed tokens, and at each position ten times as
    much as another choice."""
    horizon = Horizon(10, source_id=7)
    for token in range(10, 10 + count):
        horizon.extend(horizon.lines[0], [(token, odds), (10 * token, other)])
    return horizon


def base(horizon: Horizon) -> Line:
    return horizon.lines[0]


def test_the_base_line_is_told_from_the_committed_tokens_on() -> None:
    horizon = guessed(3)
    hint = horizon.hint(base(horizon), 0.003)
    assert (hint.start, hint.tokens, hint.length_seen, hint.source, hint.source_id) == (
        10,
        (10, 11, 12),
        10,
        Source.DRAFT,
        7,
    )
    assert hint.survivals == pytest.approx((0.8, 0.64, 0.512))
    assert hint.next_due == 0.003


def test_a_commit_that_agrees_loses_nothing() -> None:
    horizon = guessed(4)
    line = base(horizon)
    horizon.commit(10, [10, 11])
    assert base(horizon) is line
    assert line.is_alive
    assert horizon.hint(line, None).tokens == (12, 13)
    assert (horizon.length, horizon.hint(line, None).start) == (12, 12)


def test_a_commit_that_contradicts_begins_a_new_line() -> None:
    horizon = guessed(4)
    line = base(horizon)
    horizon.commit(10, [10, 99])
    assert not line.is_alive
    assert base(horizon).path == []
    assert all(other.path[:1] != [12] for other in horizon.lines)


def test_a_branch_that_the_target_follows_becomes_the_base_line() -> None:
    horizon = guessed(3)
    branch = next(line for line in horizon.lines if line.tokens == [110])
    horizon.extend(branch, [(5, 0.8)])
    assert horizon.hint(branch, None).tokens == (10, 110, 5)
    assert horizon.hint(branch, None).survivals == pytest.approx((0.8, 0.096, 0.0768))
    assert horizon.hint(branch, None).source is Source.BRANCH
    horizon.commit(10, [10, 110])
    assert base(horizon) is branch
    assert horizon.hint(branch, None).tokens == (5,)


def test_a_commit_past_the_end_of_all_lines_begins_a_new_one() -> None:
    horizon = guessed(2)
    horizon.commit(10, [10, 11, 12, 13])
    assert [line.path for line in horizon.lines] == [[]]
    assert horizon.length == 14


def test_repeated_and_lost_commits_are_survived() -> None:
    horizon = guessed(4)
    horizon.commit(10, [10, 11])
    horizon.commit(10, [10, 11])
    assert base(horizon).path == [12, 13]
    horizon.commit(11, [11, 12])
    assert base(horizon).path == [13]
    horizon.commit(20, [20])
    assert (horizon.length, base(horizon).path) == (21, [])


def test_guesses_end_where_they_are_not_worth_a_step() -> None:
    horizon = Horizon(10)
    while worth := horizon.to_continue(0.3):
        horizon.extend(worth[0][1], [(1, 0.8)])
    assert len(base(horizon).tokens) == 6  # 0.8 to the sixth is less than 0.3
    while worth := horizon.to_continue(0):
        horizon.extend(worth[0][1], [(1, 1.0)])
    assert len(base(horizon).tokens) == MOST_TOKENS


def test_the_likeliest_lines_come_first_and_lines_are_bounded() -> None:
    horizon = guessed(40, odds=0.99, other=0.5)
    odds = [one for one, _ in horizon.to_continue(0)]
    assert odds == sorted(odds, reverse=True)
    assert len(horizon.lines) <= MOST_LINES
    assert horizon.lines[0].source is Source.DRAFT


def test_an_unlikely_choice_begins_no_branch_that_is_continued() -> None:
    horizon = guessed(1, other=LEAST_SURVIVAL / 2)
    assert [line for _, line in horizon.to_continue(0)] == [base(horizon)]


def test_on_shared_processors_a_guess_must_be_worth_the_targets_time() -> None:
    assert least_survival(100, 0.003) == pytest.approx(0.3)
    assert least_survival(100, 0.0) == 0


def test_a_draft_that_is_never_right_stands_still_and_recovers() -> None:
    horizon, guesses = Horizon(10), 0
    for step in range(400):
        right = step >= 200
        worth = horizon.to_continue(0.3)
        line = worth[0][1] if worth else (horizon.to_probe() if step % 8 == 0 else None)
        if line is not None and not line.odds:
            guesses += step < 200
            horizon.extend(line, [(1 if right else 2, 0.9)])
        horizon.commit(10 + step, [1])
    assert guesses < 50
    assert horizon.to_continue(0.3)


def test_probes_take_a_small_share_of_the_time() -> None:
    probes = Probes()
    assert probes.seconds_to_wait(5.0, 0.003) == 0
    probes.record_step(5.0)
    assert probes.seconds_to_wait(5.1, 0.003) == pytest.approx(0.003 / PROBE_SHARE - 0.1)
    assert not math.isnan(probes.seconds_to_wait(99.0, 0.003))
