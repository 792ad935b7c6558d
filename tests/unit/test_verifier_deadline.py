"""When a verifier that owes answers has stalled: by what it answers, the steps it makes, and what
its tokens should take."""

from __future__ import annotations

import pytest

from orchestrator.peers.progress import Look, Progress
from orchestrator.processes.settings import OrchestratorSettings
from tests.clock import Clock

LEAST, SHARE = 10.0, 0.2
FULL_STEP, FACTOR, COLD = 512, 4.0, 0.005


class Watched:
    """A verifier's progress, with a millisecond a token."""

    def __init__(self, token_seconds: float = 0.001) -> None:
        self.clock = Clock()
        self.progress = Progress(LEAST, lambda token_count: token_count * token_seconds, self.clock)

    def look(self, step_count: int | None, unfinished_count: int | None = None) -> None:
        """Wait until it is time, then look."""
        self.clock.now += self.progress.seconds_to_look
        look = None if step_count is None else Look(step_count, unfinished_count)
        self.progress.record_look(self.clock.now, look)


def test_the_deadline_is_the_least_time_and_a_multiple_of_what_all_that_is_owed_should_take() -> None:
    progress = Watched().progress
    progress.owe(3000)
    progress.owe(1000)
    assert progress.deadline == pytest.approx(LEAST + FACTOR * 4.0)
    progress.settle(3000)
    assert progress.deadline == pytest.approx(LEAST + FACTOR * 1.0)


def test_it_is_never_less_than_a_step_full_of_others_tokens_may_take() -> None:
    progress = Watched().progress
    progress.owe(1)
    assert progress.deadline == pytest.approx(LEAST + FACTOR * 0.001 * FULL_STEP)


def test_where_nothing_is_known_a_token_gets_a_fiftieth_of_a_second() -> None:
    progress = Watched(token_seconds=0).progress
    progress.owe(10_000)
    assert progress.deadline == pytest.approx(LEAST + FACTOR * COLD * 10_000)


def test_one_that_says_nothing_has_stalled_at_the_second_look_before_the_least_time_is_over() -> None:
    watched = Watched()
    watched.progress.owe(100_000)  # a prompt that may take minutes changes nothing: the process itself is gone
    began = watched.clock.now
    watched.look(None)
    assert watched.clock.now - began == pytest.approx(SHARE * LEAST) and not watched.progress.is_stalled
    watched.look(None)
    assert watched.clock.now - began == pytest.approx(2 * SHARE * LEAST) and watched.progress.is_stalled


def test_one_that_twice_has_nothing_to_do_has_lost_what_it_owes() -> None:
    watched = Watched()
    watched.progress.owe(100_000)
    watched.look(7, 0)
    assert not watched.progress.is_stalled, "what was asked may be on its way"
    watched.look(7, 0)
    assert watched.progress.is_stalled
    watched.progress.record_verification()
    assert not watched.progress.is_stalled


@pytest.mark.parametrize("other", [1, None])
def test_one_look_at_which_it_has_something_to_do_or_does_not_say_forgets_that_it_had_nothing(
    other: int | None,
) -> None:
    watched = Watched()
    watched.progress.owe(100_000)
    for unfinished_count in (0, other, 0, other):
        watched.look(7, unfinished_count)
        assert not watched.progress.is_stalled


def test_one_look_without_a_word_is_forgotten_at_the_next() -> None:
    watched = Watched()
    watched.progress.owe(100_000)
    for step_count in (5, None, 5, None):
        watched.look(step_count)
        assert not watched.progress.is_stalled


def test_one_that_makes_no_step_has_stalled_after_the_deadline_and_not_before() -> None:
    watched = Watched()
    watched.progress.owe(10_000)
    began, deadline = watched.clock.now, LEAST + FACTOR * 10
    while watched.clock.now - began < deadline:
        assert not watched.progress.is_stalled
        watched.look(7)
    assert watched.progress.is_stalled


def test_one_that_makes_steps_has_ten_deadlines_for_an_answer() -> None:
    watched = Watched()
    watched.progress.owe(1)
    began, longest = watched.clock.now, 10 * watched.progress.deadline
    steps = iter(range(1000))
    while watched.clock.now + SHARE * LEAST < began + longest:
        watched.look(next(steps))
        assert not watched.progress.is_stalled
    watched.look(next(steps))
    assert watched.progress.is_stalled, "its steps may be others', or made up"


def test_one_that_answers_anything_and_makes_steps_never_stalls_however_long_it_owes() -> None:
    watched = Watched()
    watched.progress.owe(1)
    for step_count in range(1000):
        watched.look(step_count)
        if not step_count % 10:
            watched.progress.record_verification()
        assert not watched.progress.is_stalled


def test_each_answer_restarts_the_silence() -> None:
    watched = Watched()
    watched.progress.owe(1)
    watched.progress.owe(1)
    for _ in range(100):
        watched.clock.now += SHARE * LEAST - 1
        watched.progress.record_verification()
        assert watched.progress.seconds_to_look == pytest.approx(SHARE * LEAST)
    watched.look(None)
    watched.progress.record_verification()
    watched.look(None)
    assert not watched.progress.is_stalled


def test_what_was_asked_before_it_got_on_says_nothing() -> None:
    watched = Watched()
    watched.progress.owe(1)
    asked = watched.clock.now
    watched.clock.now += 1
    watched.progress.record_verification()
    watched.progress.record_look(asked, None)
    watched.look(None)
    assert not watched.progress.is_stalled
    watched.look(None)
    assert watched.progress.is_stalled


def test_an_idle_one_is_silent_from_its_next_item_on() -> None:
    watched = Watched()
    watched.progress.owe(1)
    watched.progress.settle(1)
    assert not watched.progress.is_owed
    watched.clock.now += 3600
    watched.progress.owe(1)
    assert watched.progress.is_owed and watched.progress.seconds_to_look == pytest.approx(SHARE * LEAST)


def test_a_process_that_was_held_up_looks_twice_before_it_blames_a_verifier() -> None:
    """A machine that slept for a minute: what the verifier answered is still to be read."""
    watched = Watched()
    watched.progress.owe(1)
    watched.clock.now += 60
    watched.look(5)
    assert not watched.progress.is_stalled
    assert watched.progress.seconds_to_look == pytest.approx(SHARE * LEAST)


def test_the_least_time_is_ten_seconds_unless_said() -> None:
    assert OrchestratorSettings.model_fields["verifier_deadline_seconds"].default == LEAST
